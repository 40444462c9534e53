//! Regions that are registered anew.

use std::sync::Arc;

use heddle_verbs::{Access, DeviceError, MrInit, NotReregistered, Region, SendWr};

use super::*;

#[test]
fn test_region_is_reregistered_with_other_rights_domain_and_range() {
    both(|nodes, kind| {
        let device = nodes.device(kind);
        let made = ends(&device, |init| init);
        let pd = made.qp.pd();
        let elsewhere = device.alloc_pd().unwrap();
        let region = Arc::new(Region::shared(8192).unwrap());
        let old = device.register_mr(elsewhere, &region, (0, 4096), 0, Access::NONE).unwrap();
        let stag = old.stag();
        let rights = Access::LOCAL_WRITE.with(Access::REMOTE_WRITE);
        let init = MrInit { access: rights, to: Some(64), qp: None };
        // A refused registration leaves the region as it was.
        let NotReregistered { mr: old, .. } =
            device.rereg_mr(old, pd, (8000, 4096), &init).unwrap_err();
        assert_eq!((old.stag(), old.len()), (stag, 4096));
        let new = device.rereg_mr(*old, pd, (4096, 100), &init).unwrap();
        assert!(new.stag() != stag && (new.to(), new.len(), new.info().off) == (64, 100, 4096));
        let (_ours, theirs) = nodes.connect(&device, made, 7030);
        let source = theirs.alloc_mr(8, Access::NONE).unwrap();
        source.write(0, b"messages");
        let write = |stag, to| theirs.post_send(&SendWr::write(1, &[source.sge(0, 8)], stag, to));
        write(new.stag(), 64).unwrap();
        assert!(theirs.wait(PATIENCE).unwrap().status.is_success(), "{kind:?}");
        until("the bytes", || (new.load(7) == b's').then_some(()));
        // The old STag names no region: the peer's next Write ends the connection.
        write(stag, 0).unwrap();
        let mut theirs = theirs;
        until("an end", || theirs.end());
    });
}

#[test]
fn test_region_with_window_or_in_device_memory_is_not_reregistered() {
    both(|nodes, kind| {
        let device = nodes.device(kind);
        let pd = device.alloc_pd().unwrap();
        let region = Arc::new(Region::shared(4096).unwrap());
        let access = Access::LOCAL_WRITE.with(Access::REMOTE_WRITE).with(Access::BIND);
        let mr = device.register_mr(pd, &region, (0, 4096), 0, access).unwrap();
        let mut window = device.alloc_window(pd).unwrap();
        window.bind(&mr, (0, 64), 0, Access::REMOTE_WRITE).unwrap();
        let init = MrInit { access, to: Some(0), qp: None };
        let before = device.mr_usage().regions;
        let NotReregistered { mr, error } = device.rereg_mr(mr, pd, (0, 4096), &init).unwrap_err();
        assert_eq!(error, DeviceError::MrBound { count: 1 }, "{kind:?}");
        until("the new one is gone", || (device.mr_usage().regions == before).then_some(()));
        window.unbind();
        device.rereg_mr(*mr, pd, (0, 4096), &init).unwrap();
        let own = device.alloc_mr(pd, 64, access).unwrap();
        let NotReregistered { error, .. } = device.rereg_mr(own, pd, (0, 64), &init).unwrap_err();
        assert_eq!(error, DeviceError::MrOfDevice);
    });
}
