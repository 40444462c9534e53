//! `/dev/infiniband/rdma_cm`, answered inside the process.
