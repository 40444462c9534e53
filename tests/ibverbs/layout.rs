//! Checks that sizes, offsets and numbers equal those of the distribution's headers.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::mem::offset_of;
use std::process::Command;

use heddle_ibverbs::abi::*;

/// Structures with their fields; `as` gives the header's name of a field if it differs, or the
/// first of several fields that are one field here.
macro_rules! structures {
    ($($name:ident { $($field:ident $(as $c:literal)?),* $(,)? })*) => {
        fn structures() -> Vec<(&'static str, usize, Vec<(&'static str, usize)>)> {
            vec![$((
                stringify!($name),
                size_of::<$name>(),
                vec![$((c_name!($field $($c)?), offset_of!($name, $field))),*],
            )),*]
        }
    };
}

macro_rules! c_name {
    ($field:ident $c:literal) => {
        $c
    };
    ($field:ident) => {
        stringify!($field)
    };
}

macro_rules! numbers {
    ($($name:ident)*) => {
        fn numbers() -> Vec<(&'static str, i128)> {
            vec![$((stringify!($name), i128::from($name))),*]
        }
    };
}

structures! {
    ibv_global_route { dgid, flow_label, sgid_index, hop_limit, traffic_class }
    ibv_ah_attr { grh, dlid, sl, src_path_bits, static_rate, is_global, port_num }
    ib_uverbs_ah_attr {
        dgid as "grh.dgid", flow_label as "grh.flow_label", sgid_index as "grh.sgid_index",
        hop_limit as "grh.hop_limit", traffic_class as "grh.traffic_class",
        grh_reserved as "grh.reserved", dlid, sl, src_path_bits, static_rate, is_global, port_num,
        reserved,
    }
    ib_uverbs_qp_attr {
        qp_attr_mask, qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn,
        dest_qp_num, qp_access_flags, ah_attr, alt_ah_attr, max_send_wr, max_recv_wr, max_send_sge,
        max_recv_sge, max_inline_data, pkey_index, alt_pkey_index, en_sqd_async_notify, sq_draining,
        max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry,
        alt_port_num, alt_timeout, reserved,
    }
    ib_user_path_rec {
        dgid, sgid, dlid, slid, raw_traffic, flow_label, reversible, mtu, pkey, hop_limit,
        traffic_class, numb_path, sl, mtu_selector, rate_selector, rate, packet_life_time_selector,
        packet_life_time, preference,
    }
    ibv_sa_path_rec {
        dgid, sgid, dlid, slid, raw_traffic, flow_label, hop_limit, traffic_class, reversible,
        numb_path, pkey, sl, mtu_selector, mtu, rate_selector, rate, packet_life_time_selector,
        packet_life_time, preference,
    }
    ibv_context_ops {
        _compat_first as "_compat_query_device", alloc_mw, bind_mw, dealloc_mw, _compat_create_cq,
        poll_cq, req_notify_cq, _compat_cq_srq as "_compat_cq_event", post_srq_recv,
        _compat_qp as "_compat_create_qp", post_send, post_recv,
        _compat_last as "_compat_create_ah",
    }
    ibv_context { device, ops, cmd_fd, async_fd, num_comp_vectors, mutex, abi_compat }
    ibv_values_ex { comp_mask, raw_clock }
    verbs_context {
        query_port, advise_mr, alloc_null_mr, counters as "read_counters",
        device_memory as "reg_dm_mr", flow_actions as "modify_flow_action_esp",
        modify_qp_rate_limit, alloc_parent_domain, dealloc_td, alloc_td, modify_cq, post_srq_ops,
        work_queues as "destroy_rwq_ind_table", query_rt_values, create_cq_ex, _priv as "priv",
        query_device_ex, flows as "ibv_destroy_flow", open_qp, create_qp_ex, get_srq_num,
        create_srq_ex, open_xrcd, close_xrcd, _abi_placeholder3 as "_ABI_placeholder3", sz, context,
    }
    ibv_comp_channel { context, fd, refcnt }
    ibv_cq { context, channel, cq_context, handle, cqe, mutex, cond, comp_events_completed, async_events_completed }
    ibv_wc {
        wr_id, status, opcode, vendor_err, byte_len, imm_data, qp_num, src_qp, wc_flags, pkey_index,
        slid, sl, dlid_path_bits,
    }
    ibv_cq_init_attr_ex { cqe, cq_context, channel, comp_vector, wc_flags, comp_mask, flags, parent_domain }
    ibv_modify_cq_attr { attr_mask, cq_count as "moderate.cq_count", cq_period as "moderate.cq_period" }
    ibv_poll_cq_attr { comp_mask }
    ibv_wc_tm_info { tag, r#priv as "priv" }
    ibv_cq_ex {
        base as "context", comp_mask, status, wr_id, start_poll, next_poll, end_poll, read_opcode,
        read_vendor_err, read_byte_len, read_imm_data, read_qp_num, read_src_qp, read_wc_flags,
        read_slid, read_sl, read_dlid_path_bits, read_completion_ts, read_cvlan, read_flow_tag,
        read_tm_info, read_completion_wallclock_ns,
    }
    ibv_device { _ops, node_type, transport_type, name, dev_name, dev_path, ibdev_path }
    ibv_device_attr {
        fw_ver, node_guid, sys_image_guid, max_mr_size, page_size_cap, vendor_id, vendor_part_id,
        hw_ver, max_qp, max_qp_wr, device_cap_flags, max_sge, max_sge_rd, max_cq, max_cqe, max_mr,
        max_pd, max_qp_rd_atom, max_ee_rd_atom, max_res_rd_atom, max_qp_init_rd_atom,
        max_ee_init_rd_atom, atomic_cap, max_ee, max_rdd, max_mw, max_raw_ipv6_qp, max_raw_ethy_qp,
        max_mcast_grp, max_mcast_qp_attach, max_total_mcast_qp_attach, max_ah, max_fmr,
        max_map_per_fmr, max_srq, max_srq_wr, max_srq_sge, max_pkeys, local_ca_ack_delay,
        phys_port_cnt,
    }
    ibv_query_device_ex_input { comp_mask }
    ibv_odp_caps {
        general_caps, rc_odp_caps as "per_transport_caps.rc_odp_caps",
        uc_odp_caps as "per_transport_caps.uc_odp_caps",
        ud_odp_caps as "per_transport_caps.ud_odp_caps",
    }
    ibv_tso_caps { max_tso, supported_qpts }
    ibv_rss_caps {
        supported_qpts, max_rwq_indirection_tables, max_rwq_indirection_table_size,
        rx_hash_fields_mask, rx_hash_function,
    }
    ibv_packet_pacing_caps { qp_rate_limit_min, qp_rate_limit_max, supported_qpts }
    ibv_tm_caps { max_rndv_hdr_size, max_num_tags, flags, max_ops, max_sge }
    ibv_cq_moderation_caps { max_cq_count, max_cq_period }
    ibv_pci_atomic_caps { fetch_add, swap, compare_swap }
    ibv_device_attr_ex {
        orig_attr, comp_mask, odp_caps, completion_timestamp_mask, hca_core_clock,
        device_cap_flags_ex, tso_caps, rss_caps, max_wq_type_rq, packet_pacing_caps,
        raw_packet_caps, tm_caps, cq_mod_caps, max_dm_size, pci_atomic_caps, xrc_odp_caps,
        phys_port_cnt_ex,
    }
    ibv_port_attr {
        state, max_mtu, active_mtu, gid_tbl_len, port_cap_flags, max_msg_sz, bad_pkey_cntr,
        qkey_viol_cntr, pkey_tbl_len, lid, sm_lid, lmc, max_vl_num, sm_sl, subnet_timeout,
        init_type_reply, active_width, active_speed, phys_state, link_layer, flags, port_cap_flags2,
    }
    ibv_gid_entry { gid, gid_index, port_num, gid_type, ndev_ifindex }
    ibv_async_event { element, event_type }
    ibv_pd { context, handle }
    ibv_mr { context, pd, addr, length, handle, lkey, rkey }
    ibv_mw { context, pd, rkey, handle, r#type as "type" }
    ibv_mw_bind_info { mr, addr, length, mw_access_flags }
    ibv_mw_bind { wr_id, send_flags, bind_info }
    ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data }
    ibv_qp_init_attr { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all }
    ibv_rx_hash_conf { rx_hash_function, rx_hash_key_len, rx_hash_key, rx_hash_fields_mask }
    ibv_qp_init_attr_ex {
        qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all, comp_mask, pd, xrcd,
        create_flags, max_tso_header, rwq_ind_tbl, rx_hash_conf, source_qpn, send_ops_flags,
    }
    ibv_qp_attr {
        qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn, dest_qp_num,
        qp_access_flags, cap, ah_attr, alt_ah_attr, pkey_index, alt_pkey_index, en_sqd_async_notify,
        sq_draining, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt,
        rnr_retry, alt_port_num, alt_timeout, rate_limit,
    }
    ibv_sge { addr, length, lkey }
    ibv_send_wr {
        wr_id, next, sg_list, num_sge, opcode, send_flags, imm_data, wr,
        remote_srqn as "qp_type.xrc.remote_srqn", bind_mw,
    }
    ibv_recv_wr { wr_id, next, sg_list, num_sge }
    ibv_qp {
        context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num, state, qp_type, mutex, cond,
        events_completed,
    }
    ibv_data_buf { addr, length }
    ibv_qp_ex {
        qp_base, comp_mask, wr_id, wr_flags, wr_atomic_cmp_swp, wr_atomic_fetch_add, wr_bind_mw,
        wr_local_inv, wr_rdma_read, wr_rdma_write, wr_rdma_write_imm, wr_send, wr_send_imm,
        wr_send_inv, wr_send_tso, wr_set_ud_addr, wr_set_xrc_srqn, wr_set_inline_data,
        wr_set_inline_data_list, wr_set_sge, wr_set_sge_list, wr_start, wr_complete, wr_abort,
        wr_atomic_write,
    }
    ibv_ece { vendor_id, options, comp_mask }
    ibv_srq { context, srq_context, pd, handle, mutex, cond, events_completed }
    ibv_srq_attr { max_wr, max_sge, srq_limit }
    ibv_srq_init_attr { srq_context, attr }
    ibv_tm_cap { max_num_tags, max_ops }
    ibv_srq_init_attr_ex { srq_context, attr, comp_mask, srq_type, pd, xrcd, cq, tm_cap }
}

/// Returns the parts of unions, by the path to their first field.
fn parts() -> Vec<(&'static str, usize)> {
    let (wr, bind) = (offset_of!(ibv_send_wr, wr), offset_of!(ibv_send_wr, bind_mw));
    vec![
        ("wr.rdma.remote_addr", wr + offset_of!(ibv_send_wr_rdma, remote_addr)),
        ("wr.rdma.rkey", wr + offset_of!(ibv_send_wr_rdma, rkey)),
        ("wr.atomic.compare_add", wr + offset_of!(ibv_send_wr_atomic, compare_add)),
        ("wr.atomic.swap", wr + offset_of!(ibv_send_wr_atomic, swap)),
        ("wr.atomic.rkey", wr + offset_of!(ibv_send_wr_atomic, rkey)),
        ("bind_mw.mw", bind + offset_of!(ibv_send_wr_bind_mw, mw)),
        ("bind_mw.rkey", bind + offset_of!(ibv_send_wr_bind_mw, rkey)),
        ("bind_mw.bind_info", bind + offset_of!(ibv_send_wr_bind_mw, bind_info)),
        ("invalidate_rkey", offset_of!(ibv_send_wr, imm_data)),
    ]
}

numbers! {
    IBV_VALUES_MASK_RAW_CLOCK
    IBV_WC_SUCCESS
    IBV_WC_LOC_LEN_ERR
    IBV_WC_LOC_QP_OP_ERR
    IBV_WC_LOC_PROT_ERR
    IBV_WC_WR_FLUSH_ERR
    IBV_WC_MW_BIND_ERR
    IBV_WC_REM_ACCESS_ERR
    IBV_WC_REM_OP_ERR
    IBV_WC_TM_RNDV_INCOMPLETE
    IBV_WC_SEND
    IBV_WC_RDMA_WRITE
    IBV_WC_RDMA_READ
    IBV_WC_COMP_SWAP
    IBV_WC_FETCH_ADD
    IBV_WC_BIND_MW
    IBV_WC_LOCAL_INV
    IBV_WC_RECV
    IBV_WC_RECV_RDMA_WITH_IMM
    IBV_WC_WITH_IMM
    IBV_WC_WITH_INV
    IBV_WC_EX_WITH_BYTE_LEN
    IBV_WC_EX_WITH_IMM
    IBV_WC_EX_WITH_QP_NUM
    IBV_WC_EX_WITH_SRC_QP
    IBV_WC_EX_WITH_SLID
    IBV_WC_EX_WITH_SL
    IBV_WC_EX_WITH_DLID_PATH_BITS
    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP
    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK
    IBV_CQ_INIT_ATTR_MASK_FLAGS
    IBV_CREATE_CQ_ATTR_SINGLE_THREADED
    IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN
    IBV_CQ_ATTR_MODERATE
    IBV_NODE_RNIC
    IBV_TRANSPORT_IWARP
    IBV_DEVICE_MEM_WINDOW
    IBV_DEVICE_MEM_MGT_EXTENSIONS
    IBV_DEVICE_MEM_WINDOW_TYPE_2A
    IBV_DEVICE_MEM_WINDOW_TYPE_2B
    IBV_ATOMIC_NONE
    IBV_ATOMIC_HCA
    IBV_ATOMIC_GLOB
    IBV_MTU_256
    IBV_MTU_512
    IBV_MTU_1024
    IBV_MTU_2048
    IBV_MTU_4096
    IBV_PORT_DOWN
    IBV_PORT_ACTIVE
    IBV_LINK_LAYER_ETHERNET
    IBV_PORT_CM_SUP
    IBV_PORT_IP_BASED_GIDS
    IBV_GID_TYPE_IB
    IBV_EVENT_CQ_ERR
    IBV_EVENT_QP_FATAL
    IBV_EVENT_QP_REQ_ERR
    IBV_EVENT_QP_ACCESS_ERR
    IBV_EVENT_COMM_EST
    IBV_EVENT_SQ_DRAINED
    IBV_EVENT_DEVICE_FATAL
    IBV_EVENT_PORT_ACTIVE
    IBV_EVENT_PORT_ERR
    IBV_EVENT_SRQ_ERR
    IBV_EVENT_SRQ_LIMIT_REACHED
    IBV_EVENT_QP_LAST_WQE_REACHED
    IBV_EVENT_GID_CHANGE
    IBV_EVENT_WQ_FATAL
    IBV_ACCESS_LOCAL_WRITE
    IBV_ACCESS_REMOTE_WRITE
    IBV_ACCESS_REMOTE_READ
    IBV_ACCESS_REMOTE_ATOMIC
    IBV_ACCESS_MW_BIND
    IBV_ACCESS_ZERO_BASED
    IBV_ACCESS_ON_DEMAND
    IBV_ACCESS_HUGETLB
    IBV_ACCESS_OPTIONAL_RANGE
    IBV_ACCESS_RELAXED_ORDERING
    IBV_REREG_MR_CHANGE_TRANSLATION
    IBV_REREG_MR_CHANGE_PD
    IBV_REREG_MR_CHANGE_ACCESS
    IBV_REREG_MR_ERR_INPUT
    IBV_REREG_MR_ERR_CMD
    IBV_MW_TYPE_1
    IBV_MW_TYPE_2
    IBV_QPT_RC
    IBV_QPT_UD
    IBV_QP_INIT_ATTR_PD
    IBV_QP_INIT_ATTR_CREATE_FLAGS
    IBV_QP_INIT_ATTR_SEND_OPS_FLAGS
    IBV_QP_EX_WITH_RDMA_WRITE
    IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
    IBV_QP_EX_WITH_SEND
    IBV_QP_EX_WITH_RDMA_READ
    IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
    IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD
    IBV_QP_EX_WITH_LOCAL_INV
    IBV_QP_EX_WITH_BIND_MW
    IBV_QP_EX_WITH_SEND_WITH_INV
    IBV_QP_STATE
    IBV_QP_CUR_STATE
    IBV_QP_ACCESS_FLAGS
    IBV_QP_MAX_QP_RD_ATOMIC
    IBV_QP_MAX_DEST_RD_ATOMIC
    IBV_QP_CAP
    IBV_QP_DEST_QPN
    IBV_QP_RATE_LIMIT
    IBV_QPS_RESET
    IBV_QPS_INIT
    IBV_QPS_RTR
    IBV_QPS_RTS
    IBV_QPS_SQD
    IBV_QPS_SQE
    IBV_QPS_ERR
    IBV_WR_RDMA_WRITE
    IBV_WR_RDMA_WRITE_WITH_IMM
    IBV_WR_SEND
    IBV_WR_SEND_WITH_IMM
    IBV_WR_RDMA_READ
    IBV_WR_ATOMIC_CMP_AND_SWP
    IBV_WR_ATOMIC_FETCH_AND_ADD
    IBV_WR_LOCAL_INV
    IBV_WR_BIND_MW
    IBV_WR_SEND_WITH_INV
    IBV_SEND_FENCE
    IBV_SEND_SIGNALED
    IBV_SEND_SOLICITED
    IBV_SEND_INLINE
    IBV_SRQ_MAX_WR
    IBV_SRQ_LIMIT
    IBV_SRQT_BASIC
    IBV_SRQ_INIT_ATTR_TYPE
    IBV_SRQ_INIT_ATTR_PD
}

/// Structures at whose end later versions of rdma-core have more fields than ours. A program never
/// makes them, or passes their length.
const APPENDED: [&str; 2] = ["sizeof(ibv_port_attr)", "sizeof(ibv_qp_ex)"];

#[test]
fn test_structure_layouts_and_constants_match_c_headers() {
    let mut expected = BTreeMap::new();
    let mut source = String::from(
        "#include <stdio.h>\n#include <stddef.h>\n#include <infiniband/verbs.h>\n\
         #include <infiniband/sa.h>\n#include <rdma/rdma_user_cm.h>\n#include <rdma/ib_user_sa.h>\n\
         int main(void) {\n",
    );
    let mut line = |name: String, ours: i128, theirs: String| {
        writeln!(source, "    printf(\"{name} %lld\\n\", (long long)({theirs}));").unwrap();
        assert!(expected.insert(name.clone(), ours).is_none(), "{name} twice");
    };
    let of = |n: usize| i128::try_from(n).unwrap();
    for (name, size, fields) in structures() {
        line(format!("sizeof({name})"), of(size), format!("sizeof(struct {name})"));
        for (field, offset) in fields {
            line(
                format!("{name}.{field}"),
                of(offset),
                format!("offsetof(struct {name}, {field})"),
            );
        }
    }
    for (path, offset) in parts() {
        line(
            format!("ibv_send_wr.{path}"),
            of(offset),
            format!("offsetof(struct ibv_send_wr, {path})"),
        );
    }
    for (name, value) in numbers() {
        line(name.to_string(), value, name.to_string());
    }
    source.push_str("    return 0;\n}\n");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("layout.c");
    std::fs::write(&path, &source).unwrap();
    let out = Command::new(crate::c::compile(&path, dir.path(), &[])).output().unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    let theirs: BTreeMap<_, _> = text
        .lines()
        .map(|line| line.rsplit_once(' ').unwrap())
        .map(|(name, value)| (name.to_string(), value.parse::<i128>().unwrap()))
        .collect();
    assert_eq!(theirs.len(), expected.len());
    let differ: Vec<_> = expected
        .iter()
        .filter(|(name, ours)| {
            let theirs = theirs[*name];
            theirs != **ours && !(APPENDED.contains(&name.as_str()) && theirs > **ours)
        })
        .collect();
    assert!(differ.is_empty(), "ours: {differ:?}");
    assert!(expected.len() > 500, "few things are compared: {}", expected.len());
}
