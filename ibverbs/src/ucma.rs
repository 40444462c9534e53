//! `/dev/infiniband/rdma_cm`, answered inside the process.

/// Answers the device from here on.
pub fn install() {}
