//! RDMA Writes.

use super::*;

#[test]
fn test_receiver_refuses_write_to_unknown_stag() {
    let mut t = Target::new();
    for bit in 0..32 {
        let s = write(Stag(t.all.0 ^ 1 << bit), TO, 8);
        Target::new().refuses(&s, 0x1100, 14, "err_stag");
    }
    let stag = t.all;
    t.accepts(&write(stag, TO, 8));
    t.mrs.deregister(stag).unwrap();
    t.refuses(&write(stag, TO, 8), 0x1100, 14, "err_stag");
}

#[test]
fn test_receiver_refuses_write_to_region_of_another_pd_or_qp() {
    for (pd, qpn) in [(Pd(4), QPN), (PD, Qpn(6))] {
        let mut t = Target::new();
        let stag = t.mrs.register_for_qp(pd, qpn, 0, 0, 100, rights()).unwrap().stag;
        let code = 0x1102;
        t.refuses(&write(stag, 0, 8), code, 14, "err_association");
    }
    let mut t = Target::new();
    let stag = t.mrs.register_for_qp(PD, QPN, 0, 0, 100, rights()).unwrap().stag;
    t.accepts(&write(stag, 0, 8));
}

#[test]
fn test_receiver_refuses_write_without_the_right() {
    for access in [Access::NONE, Access::LOCAL_WRITE.with(Access::REMOTE_READ)] {
        let mut t = Target::new();
        let stag = t.region(access);
        t.refuses(&write(stag, TO, 8), 0x1100, 14, "err_access");
    }
    let mut t = Target::new();
    let stag = t.region(Access::REMOTE_WRITE);
    t.accepts(&write(stag, TO, 8));
}

#[test]
fn test_receiver_refuses_write_past_the_bounds() {
    let end = TO + u64::from(LEN);
    for (to, n) in [(TO - 1, 1), (TO - 1, 8), (end - 7, 8), (end, 1), (0, 1), (TO, 1001)] {
        let mut t = Target::new();
        let s = write(t.all, to, n);
        t.refuses(&s, 0x1101, 14, "err_bounds");
    }
    for (to, n) in [(TO, 1), (end - 8, 8), (end - 1, 1), (TO, 1000)] {
        let mut t = Target::new();
        let s = write(t.all, to, n);
        t.accepts(&s);
        let at = usize::try_from(ADDR + (to - TO)).unwrap();
        assert_eq!(t.mem.read(at, n), vec![0x5a; n]);
        assert_eq!(t.mem.snapshot().iter().filter(|b| **b == FILL).count(), 4096 - n);
    }
}

#[test]
fn test_receiver_refuses_write_whose_offset_wraps() {
    for (to, n) in [(u64::MAX, 1), (u64::MAX - 6, 8), (u64::MAX, 1000)] {
        let mut t = Target::new();
        let s = write(t.all, to, n);
        t.refuses(&s, 0x1103, 14, "err_wrap");
    }
    let mut t = Target::new();
    let s = write(t.all, u64::MAX - 8, 8);
    t.refuses(&s, 0x1101, 14, "err_bounds");
}

#[test]
fn test_receiver_accepts_empty_write_without_checking_its_stag() {
    Target::new().accepts(&write(Stag(1), 0, 0));
    Target::new().accepts(&write(Stag(0), u64::MAX, 0));
}
