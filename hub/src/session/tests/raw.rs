//! A client without a library.

use super::*;

pub(super) fn account(policy: &Policy) -> Arc<Account> {
    Account::new(policy, heddle_shm::account::Descriptors::new(policy.descriptors.into()))
}

/// A client that sends anything it likes.
pub(super) struct Raw {
    pub(super) session: Session,
    pub(super) inbox: Inbox,
    next: u64,
}

impl Raw {
    pub(super) fn new(hub: &Arc<Hub>, policy: Policy) -> Raw {
        let account = account(&policy);
        Raw::sharing(hub, policy, account)
    }

    /// Returns one of several clients of a principal.
    pub(super) fn sharing(hub: &Arc<Hub>, policy: Policy, account: Arc<Account>) -> Raw {
        let session = Session::new(hub, policy, account, Sleeper::new().waker());
        Raw { session, inbox: Inbox::new(1 << 16), next: 0 }
    }

    pub(super) fn opened(hub: &Arc<Hub>) -> Raw {
        Raw::opened_with(hub, Policy::default())
    }

    pub(super) fn opened_with(hub: &Arc<Hub>, policy: Policy) -> Raw {
        let mut raw = Raw::new(hub, policy);
        raw.bring_files(1 << 20, 1 << 20);
        let args = r#"{"memory":1048576,"queues":1048576,"name":"raw"}"#;
        let (answer, fds) = raw.ask("device-open", args);
        assert_eq!((answer.error, fds.len()), (None, 0));
        raw
    }

    /// Brings the files of queues and memory for a device.
    pub(super) fn bring_files(&mut self, queues: usize, memory: usize) {
        for len in [queues, memory] {
            self.bring(&Region::shared(len).unwrap().fd().unwrap());
        }
    }

    /// Carries out the work that other threads have prepared.
    pub(super) fn work(&mut self) {
        // Check in this order: a job that finishes in between has work.
        while self.session.is_preparing() || self.session.has_work() {
            self.session.work();
            std::thread::yield_now();
        }
    }

    pub(super) fn ask(&mut self, op: &str, args: &str) -> (Answer, Vec<OwnedFd>) {
        self.next += 1;
        let line = format!(r#"{{"v":1,"id":{},"op":"{op}","args":{args}}}"#, self.next);
        self.session.handle(line.as_bytes(), &mut self.inbox);
        self.work();
        let out = self.session.poll_transmit().unwrap();
        (serde_json::from_slice(&out.bytes).unwrap(), out.fds)
    }

    pub(super) fn refused(&mut self, op: &str, args: &str) -> FaultKind {
        let (answer, _) = self.ask(op, args);
        answer.error.unwrap_or_else(|| panic!("{op} {args} was carried out")).kind
    }

    /// Adds a descriptor as if it had come with the next request.
    pub(super) fn bring(&mut self, fd: &impl AsFd) {
        let (a, b) = UnixStream::pair().unwrap();
        send(&a, b"\n", &[fd.as_fd()]).unwrap();
        receive(&b, &mut self.inbox).unwrap();
    }
}

/// Returns arguments for a queue pair.
pub(super) fn qp(pd: u64, cq: u64) -> String {
    format!(r#"{{"pd":{pd},"send_cq":{cq},"recv_cq":{cq},"srq":null,"sq_depth":4,"rq_depth":4,"#)
        + r#""max_send_sge":1,"max_recv_sge":1,"max_inline":0}"#
}

/// Creates a completion queue, and a queue pair with it.
pub(super) fn ask_for_qp(raw: &mut Raw, pd: u64) -> (u64, u64) {
    let (cq, _) = raw.ask("create-cq", r#"{"depth":8,"waker":null}"#);
    let cq = cq.ok.unwrap()["off"].as_u64().unwrap();
    let (made, _) = raw.ask("create-qp", &qp(pd, cq));
    (cq, made.ok.unwrap()["qp"].as_u64().unwrap())
}
