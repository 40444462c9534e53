//! Sparse regions: which of their pages are populated, paid for and reached, whatever the client
//! does.

use heddle_mr::{MemRange, Memory};
use heddle_shm::account::Kind;
use heddle_types::{Pd, Qpn, Stag};

use super::raw::Raw;
use super::*;
use crate::memory::RegionMemory;

const PAGE: usize = 4096;

/// Allows 64 pages beside the device's own memory.
fn policy() -> Policy {
    Policy { memory: (1 << 20) + 64 * PAGE as u64, ..Policy::default() }
}

/// Fills pages, as their owner does before it registers them.
fn fill(region: &Region, pages: core::ops::Range<usize>, with: u8) {
    for page in pages {
        region.place(page * PAGE, &[with; PAGE]).unwrap();
    }
}

/// Returns true if the page at an address is mapped, so that a touch takes no fault.
fn is_mapped(at: *mut u8) -> bool {
    use std::os::unix::fs::FileExt;
    let map = std::fs::File::open("/proc/self/pagemap").unwrap();
    let mut entry = [0; 8];
    map.read_exact_at(&mut entry, (at.addr() / PAGE * 8) as u64).unwrap();
    u64::from_ne_bytes(entry) >> 63 == 1
}

/// A worker's view of the registered memory.
struct Worker(RegionMemory, Arc<Hub>);

impl Worker {
    fn new(hub: &Arc<Hub>) -> Worker {
        Worker(RegionMemory::new(hub.registry().regions().clone()), hub.clone())
    }

    fn range(&self, pd: Pd, stag: Stag, to: u64, len: u32) -> Option<MemRange> {
        let all = Access::REMOTE_WRITE;
        self.1.registry().mrs().check(pd, Qpn(1), stag, to, len, all).ok()
    }

    /// Waits until everything given back is released.
    fn settle(&self, done: impl Fn() -> bool) {
        until("everything is released", || {
            self.0.quiescent();
            self.1.registry().reclaim();
            done()
        });
    }
}

fn register(raw: &mut Raw, (pd, region): (u64, u64), off: usize, len: usize) -> Answer {
    let args = format!(
        r#"{{"pd":{pd},"region":{region},"off":{off},"len":{len},"access":2,"to":0,"qp":null}}"#
    );
    raw.ask("register-mr", &args).0
}

fn id(answer: Answer, key: &str) -> u64 {
    answer.ok.unwrap_or_else(|| panic!("{:?}", answer.error))[key].as_u64().unwrap()
}

fn add(raw: &mut Raw, region: &Region) -> u64 {
    raw.bring(&region.fd().unwrap());
    let args = format!(r#"{{"len":{},"sparse":true}}"#, region.len());
    id(raw.ask("add-region", &args).0, "id")
}

#[test]
fn test_worker_and_application_share_registered_parts_of_a_sparse_region() {
    let (device, server) = served(policy());
    let device = device.unwrap();
    let pd = device.alloc_pd().unwrap();
    // More than the machine has memory.
    let region = Arc::new(Region::sparse(1 << 36).unwrap());
    let far = (1 << 35) / PAGE;
    fill(&region, far..far + 4, 7);
    let worker = Worker::new(&server.hub);
    let mut mrs = Vec::new();
    for (page, pages) in [(far, 2), (far + 1, 3), (far, 1)] {
        let range = (page * PAGE + 8, pages * PAGE - 8);
        let to = (page * PAGE + 8) as u64;
        mrs.push(device.register_mr(pd, &region, range, to, Access::REMOTE_WRITE).unwrap());
    }
    for mr in &mrs {
        let len = u32::try_from(mr.len()).unwrap();
        let range = worker.range(pd, mr.stag(), mr.to(), len).unwrap();
        assert!(is_mapped(worker.0.ptr(range).unwrap()), "a worker would take a page fault");
        let mut bytes = vec![0; mr.len()];
        worker.0.gather(range, &mut bytes);
        assert!(bytes.iter().all(|b| *b == 7));
    }
    let last = (far + 4) * PAGE - 1;
    let end = worker.range(pd, mrs[1].stag(), last as u64, 1).unwrap();
    worker.0.place(end, b"x");
    assert_eq!(region.load(last), Ok(b'x'));
    // The other registrations stay as they were when this one ends.
    drop(mrs.remove(0));
    until("it is deregistered", || {
        device.mr_usage().regions <= 3 && server.hub.registry().draining() > 0
    });
    worker.settle(|| server.hub.registry().draining() == 0);
    region.place(last, b"y").unwrap();
    let mut byte = [0];
    worker.0.gather(end, &mut byte);
    assert_eq!(&byte, b"y");
    drop((mrs, device));
    server.thread.join().unwrap();
}

/// The account counts each page once, and a page that no registration includes any more is not
/// mapped any more.
#[test]
fn test_pages_of_sparse_region_count_while_a_registration_includes_them() {
    let (hub, _plane) = hub();
    let account = raw::account(&policy());
    let mut raw = Raw::sharing(&hub, policy(), account.clone());
    raw.bring_files(1 << 20, 1 << 20);
    let opened = raw.ask("device-open", r#"{"memory":1048576,"queues":1048576,"name":"x"}"#).0;
    assert_eq!(opened.error, None);
    let worker = Worker::new(&hub);
    let pages = || (account.used(Kind::Memory) - (1 << 20)) / PAGE as u64;
    let region = Region::sparse(1 << 36).unwrap();
    fill(&region, 0..100, 1);
    let pd = id(raw.ask("create-pd", "null").0, "pd");
    let name = add(&mut raw, &region);
    assert_eq!((account.used(Kind::Mapped), pages()), (1 << 36, 0));
    let one = register(&mut raw, (pd, name), 5, 2 * PAGE);
    assert_eq!(pages(), 3);
    let two = register(&mut raw, (pd, name), 2 * PAGE, 2 * PAGE);
    assert_eq!((pages(), raw.session.usage().memory), (4, (1 << 20) + 4 * PAGE as u64));
    let three = register(&mut raw, (pd, name), 40 * PAGE, 60 * PAGE);
    assert_eq!(pages(), 64);
    // The account is full, but pages that are already held cost nothing.
    let refused = register(&mut raw, (pd, name), 30 * PAGE, 1).error.unwrap();
    assert_eq!(refused.kind, FaultKind::Quota);
    let again = register(&mut raw, (pd, name), 0, 4 * PAGE);
    assert_eq!(pages(), 64);
    let at = |answer: &Answer| {
        let ok = answer.ok.as_ref().unwrap();
        let stag = Stag(u32::try_from(ok["stag"].as_u64().unwrap()).unwrap());
        let range = worker.range(Pd(u32::try_from(pd).unwrap()), stag, 0, 1).unwrap();
        worker.0.ptr(range).unwrap()
    };
    let (first, second, third) = (at(&one), at(&two), at(&three));
    assert!([first, second, third].map(is_mapped) == [true; 3]);
    let next = third.wrapping_sub(PAGE);
    assert!(!is_mapped(next), "nobody registered it");
    let mut destroy = |answer: Answer| {
        let mr = id(answer, "id");
        assert_eq!(raw.ask("destroy-mr", &format!(r#"{{"id":{mr}}}"#)).0.error, None);
    };
    // Where pages may be locked, released pages are not mapped any more.
    let other = Region::sparse(1 << 36).unwrap();
    let locks = Region::sparse_of_client(other.fd().unwrap(), 1 << 36).unwrap().is_locked();
    destroy(three);
    assert_eq!(pages(), 64, "the worker may still look at it");
    worker.settle(|| pages() == 4);
    assert!(is_mapped(third) != locks && is_mapped(first));
    destroy(one);
    destroy(again);
    worker.settle(|| pages() == 2);
    assert!(is_mapped(first) != locks && is_mapped(second));
    // The contents of the file stay.
    destroy(two);
    worker.settle(|| pages() == 0);
    assert_eq!(region.load(2 * PAGE), Ok(1));
    while !raw.session.close() {}
    worker.settle(|| account.is_idle());
}

#[test]
fn test_registration_of_hole_or_beyond_end_is_refused_without_effect() {
    let (hub, _plane) = hub();
    let mut raw = Raw::opened_with(&hub, policy());
    let region = Region::sparse(1 << 36).unwrap();
    fill(&region, 1..3, 1);
    fill(&region, 4..5, 1);
    let pd = id(raw.ask("create-pd", "null").0, "pd");
    let name = add(&mut raw, &region);
    let blocks = || rustix::fs::fstat(region.fd().unwrap()).unwrap().st_blocks;
    let before = blocks();
    let len = 1 << 36;
    for (off, n) in [
        (0, PAGE),
        (PAGE - 1, 2),
        (PAGE, 3 * PAGE),
        (3 * PAGE, 1),
        (4 * PAGE, PAGE + 1),
        (len - 1, 1),
        (len, 1),
        (len - 1, 2),
        (usize::MAX, 1),
        (1, usize::MAX),
    ] {
        let refused = register(&mut raw, (pd, name), off, n).error.unwrap();
        let kinds = [FaultKind::Invalid, FaultKind::Quota];
        assert!(kinds.contains(&refused.kind), "{off} {n}: {refused:?}");
    }
    // Each round starts right after the one before it, whose pages are not released yet.
    for round in 0..200 {
        for id in [1, 2, 3] {
            let line = format!(
                r#"{{"v":1,"id":{id},"op":"register-mr","args":{{"pd":{pd},"region":{name},"off":0,"len":1,"access":2,"to":0,"qp":null}}}}"#
            );
            raw.session.handle(line.as_bytes(), &mut raw.inbox);
        }
        raw.work();
        for _ in 0..3 {
            let out = raw.session.poll_transmit().unwrap();
            let answer: Answer = serde_json::from_slice(&out.bytes).unwrap();
            assert!(answer.error.is_some(), "a hole is registered, round {round}");
        }
    }
    assert_eq!(blocks(), before, "the server has filled the client's file");
    assert_eq!(register(&mut raw, (pd, name), PAGE, 2 * PAGE).error, None);
    assert_eq!(
        register(&mut raw, (pd + 1, name), PAGE, 1).error.unwrap().kind,
        FaultKind::NotFound
    );
    while !raw.session.close() {}
    let worker = Worker::new(&hub);
    worker.settle(|| hub.registry().mrs().is_empty());
}

#[test]
fn test_address_space_of_sparse_regions_has_its_own_limit() {
    let (hub, _plane) = hub();
    let policy = Policy { mapped: 1 << 36, ..policy() };
    let account = raw::account(&policy);
    let mut raw = Raw::sharing(&hub, policy, account.clone());
    raw.bring_files(1 << 20, 1 << 20);
    let opened = raw.ask("device-open", r#"{"memory":1048576,"queues":1048576,"name":"x"}"#).0;
    assert_eq!(opened.error, None);
    let region = Region::sparse(1 << 36).unwrap();
    for len in [(1u64 << 36) + 1, 1 << 47, u64::MAX] {
        raw.bring(&region.fd().unwrap());
        let args = format!(r#"{{"len":{len},"sparse":true}}"#);
        assert_eq!(raw.refused("add-region", &args), FaultKind::Quota, "{len}");
    }
    // Sizes other than the file's, and files whose pages cannot become fewer.
    let large = Region::shared(8 * PAGE).unwrap();
    for (fd, len) in [(&region, 1 << 20), (&large, 4 * PAGE), (&large, 9 * PAGE)] {
        raw.bring(&fd.fd().unwrap());
        let args = format!(r#"{{"len":{len},"sparse":true}}"#);
        assert_eq!(raw.refused("add-region", &args), FaultKind::Invalid, "{len}");
    }
    assert_eq!(account.used(Kind::Mapped), 0);
    let name = add(&mut raw, &region);
    let more = Region::sparse(PAGE).unwrap();
    raw.bring(&more.fd().unwrap());
    assert_eq!(raw.refused("add-region", r#"{"len":4096,"sparse":true}"#), FaultKind::Quota);
    assert_eq!(raw.ask("destroy-region", &format!(r#"{{"id":{name}}}"#)).0.error, None);
    until("its place is free", || {
        account.used(Kind::Mapped) == 0 || {
            raw.session.usage();
            false
        }
    });
    while !raw.session.close() {}
}

/// Requests at once, regions that end before their registrations are made, and a session that ends
/// meanwhile: the account gets everything back.
#[test]
fn test_waiting_registrations_are_answered_in_order_and_end_with_session() {
    let (hub, _plane) = hub();
    let account = raw::account(&policy());
    let mut raw = Raw::sharing(&hub, policy(), account.clone());
    raw.bring_files(1 << 20, 1 << 20);
    let opened = raw.ask("device-open", r#"{"memory":1048576,"queues":1048576,"name":"x"}"#).0;
    assert_eq!(opened.error, None);
    let region = Region::sparse(1 << 36).unwrap();
    fill(&region, 0..64, 1);
    let pd = id(raw.ask("create-pd", "null").0, "pd");
    let name = add(&mut raw, &region);
    let mut send = |n: u64, op: &str, args: String| {
        let line = format!(r#"{{"v":1,"id":{n},"op":"{op}","args":{args}}}"#);
        raw.session.handle(line.as_bytes(), &mut raw.inbox);
    };
    for n in 0..300 {
        let args = format!(
            r#"{{"pd":{pd},"region":{name},"off":{},"len":4097,"access":2,"to":0,"qp":null}}"#,
            n % 60 * 4096
        );
        send(1000 + n, "register-mr", args);
    }
    send(2000, "destroy-region", format!(r#"{{"id":{name}}}"#));
    let mut fine = Vec::new();
    let mut kinds = Vec::new();
    loop {
        raw.work();
        let Some(out) = raw.session.poll_transmit() else { break };
        let answer: Answer = serde_json::from_slice(&out.bytes).unwrap();
        match answer.error {
            None => fine.push(answer.id),
            Some(fault) => kinds.push(fault.kind),
        }
    }
    // 64 STags are allowed, and 256 requests may wait.
    assert_eq!(fine.iter().filter(|n| **n < 2000).count(), 64);
    assert!(fine.iter().filter(|n| **n < 2000).is_sorted(), "{fine:?}");
    assert!(kinds.contains(&FaultKind::Busy) && kinds.contains(&FaultKind::Quota), "{kinds:?}");
    // The same again, but the session ends at once.
    let region = Region::sparse(1 << 30).unwrap();
    fill(&region, 0..8, 1);
    let name = add(&mut raw, &region);
    for n in 0..8 {
        let line = format!(
            r#"{{"v":1,"id":{n},"op":"register-mr","args":{{"pd":{pd},"region":{name},"off":{},"len":4096,"access":2,"to":0,"qp":null}}}}"#,
            n * 4096
        );
        raw.session.handle(line.as_bytes(), &mut raw.inbox);
    }
    while !raw.session.close() {}
    drop(raw);
    let worker = Worker::new(&hub);
    worker.settle(|| account.is_idle() && hub.registry().mrs().is_empty());
}

/// The session does so also right after a large registration that fails on the lane, and while the
/// lane releases unregistered pages.
#[test]
fn test_session_that_may_wait_answers_small_registrations_itself() {
    let (hub, _plane) = hub();
    let policy = Policy { memory: 16 << 20, ..Policy::default() };
    let account = raw::account(&policy);
    let mut raw = Raw::sharing(&hub, policy, account.clone());
    raw.session = raw.session.of_own_user();
    raw.bring_files(1 << 20, 1 << 20);
    let opened = raw.ask("device-open", r#"{"memory":1048576,"queues":1048576,"name":"x"}"#).0;
    assert_eq!(opened.error, None);
    let worker = Worker::new(&hub);
    let region = Region::sparse(1 << 36).unwrap();
    // More than a session populates itself.
    const LARGE: usize = (2 << 20) / PAGE + 1;
    fill(&region, 0..LARGE, 1);
    let pd = id(raw.ask("create-pd", "null").0, "pd");
    let name = add(&mut raw, &region);
    let answer = |raw: &mut Raw, off: usize, len: usize| {
        let line = format!(
            r#"{{"v":1,"id":7,"op":"register-mr","args":{{"pd":{pd},"region":{name},"off":{off},"len":{len},"access":2,"to":0,"qp":null}}}}"#
        );
        raw.session.handle(line.as_bytes(), &mut raw.inbox);
        let at_once = !raw.session.is_preparing();
        raw.work();
        let out = raw.session.poll_transmit().unwrap();
        (at_once, serde_json::from_slice::<Answer>(&out.bytes).unwrap())
    };
    // The lane is busy until this test lets it go on.
    let (go_on, held) = std::sync::mpsc::channel::<()>();
    heddle_shm::closer::run(heddle_shm::closer::MEMORY, move || {
        let _ = held.recv();
    });
    let opener = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        drop(go_on);
    });
    let (at_once, refused) = answer(&mut raw, PAGE, LARGE * PAGE);
    assert!(!at_once && refused.error.is_some(), "a large one, with holes");
    opener.join().unwrap();
    for round in 0..300 {
        let (at_once, refused) = answer(&mut raw, LARGE * PAGE, PAGE);
        assert!(at_once && refused.error.is_some(), "a hole is registered, round {round}");
        let (_, large) = answer(&mut raw, 8 * PAGE, LARGE * PAGE);
        assert!(large.error.is_some(), "a hole is registered, round {round}");
        let (at_once, small) = answer(&mut raw, (LARGE - 7) * PAGE, 8 * PAGE);
        assert!(at_once && small.error.is_some(), "a hole is registered, round {round}");
    }
    for round in 0..2000 {
        let (at_once, registered) = answer(&mut raw, PAGE, 8 * PAGE);
        assert!(at_once);
        let stag =
            Stag(u32::try_from(registered.ok.as_ref().unwrap()["stag"].as_u64().unwrap()).unwrap());
        let mr = id(registered, "id");
        let pd = Pd(u32::try_from(pd).unwrap());
        for page in 0..8 {
            let range = worker.range(pd, stag, page * PAGE as u64, 1).unwrap();
            let at = worker.0.ptr(range).unwrap();
            assert!(is_mapped(at), "a worker would take a page fault, round {round}");
        }
        raw.session.handle(
            format!(r#"{{"v":1,"id":8,"op":"destroy-mr","args":{{"id":{mr}}}}}"#).as_bytes(),
            &mut raw.inbox,
        );
        raw.session.poll_transmit().unwrap();
        worker.0.quiescent();
        hub.registry().reclaim();
    }
    while !raw.session.close() {}
    worker.settle(|| account.is_idle());
}

#[test]
fn test_shrinkable_file_is_accepted_only_by_rnic_of_the_same_user() {
    let (hub, _plane) = hub();
    let account = raw::account(&policy());
    let worker = Worker::new(&hub);
    for own in [false, true] {
        let mut raw = Raw::sharing(&hub, policy(), account.clone());
        if own {
            raw.session = raw.session.of_own_user();
        }
        raw.bring_files(1 << 20, 1 << 20);
        let opened = raw.ask("device-open", r#"{"memory":1048576,"queues":1048576,"name":"x"}"#).0;
        let takes = opened.ok.unwrap().get("takes_files").and_then(serde_json::Value::as_bool);
        assert_eq!(takes.unwrap_or(false), own);
        let file = rustix::fs::memfd_create(c"common", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let file = std::fs::File::from(file);
        let len = 16 * PAGE + 9;
        file.set_len(len as u64).unwrap();
        let region = Region::of_file(file.try_clone().unwrap().into(), len).unwrap();
        let bring = |raw: &mut Raw, len: usize| {
            raw.bring(&file);
            raw.ask("add-region", &format!(r#"{{"len":{len},"sparse":true,"unsealed":true}}"#)).0
        };
        if !own {
            assert_eq!(bring(&mut raw, len).error.unwrap().kind, FaultKind::Invalid);
            while !raw.session.close() {}
            worker.settle(|| account.is_idle());
            continue;
        }
        assert_eq!(bring(&mut raw, len + 1).error.unwrap().kind, FaultKind::Invalid);
        // The client may bring the file any number of times: the server seals nothing.
        let name = [(); 2].map(|()| id(bring(&mut raw, len), "id"))[1];
        fill(&region, 3..5, 7);
        let pd = id(raw.ask("create-pd", "null").0, "pd");
        let registered = register(&mut raw, (pd, name), 3 * PAGE, 2 * PAGE);
        assert_eq!(raw.session.usage().memory, (1 << 20) + 2 * PAGE as u64);
        let stag = u32::try_from(registered.ok.unwrap()["stag"].as_u64().unwrap()).unwrap();
        let pd = Pd(u32::try_from(pd).unwrap());
        let range = worker.range(pd, Stag(stag), 0, 8192).unwrap();
        assert!(is_mapped(worker.0.ptr(range).unwrap()), "a worker would take a page fault");
        let look = || {
            let mut bytes = vec![1; 2 * PAGE];
            worker.0.gather(range, &mut bytes);
            bytes
        };
        assert_eq!((look(), raw.session.has_lost_memory()), (vec![7; 2 * PAGE], false));
        file.set_len(0).unwrap();
        assert_eq!((look(), raw.session.has_lost_memory()), (vec![0; 2 * PAGE], true));
        while !raw.session.close() {}
    }
    worker.settle(|| account.is_idle() && hub.registry().mrs().is_empty());
}
