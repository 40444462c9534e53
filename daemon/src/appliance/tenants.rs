//! Applications of other processes: what each may have and do, and how it is ended.
//!
//! What a client may have is its rule's, and all clients of one user that a rule covers share it: they
//! have one account. When the configuration changes, every session hears of its new policy, or ends
//! when no rule covers it any more.

use core::cell::{Cell, RefCell};
use core::net::SocketAddr;
use core::time::Duration;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use heddle_socket::{Fault, FaultKind};
use heddle_verbs::account::{Account, Descriptors};
use heddle_verbs::remote::Policy;
use rustix::process::{Resource, getrlimit};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

use super::Appliance;
use crate::access::{Access, Peer};
use crate::config::Config;

/// The rule that covers a client, and its user.
type Key = (String, u32);

/// Descriptors that the process has for itself, whatever its limit: half of them, if it has few.
const OWN: u64 = 512;

/// How long sessions may take to do what they are told: one whose client does not read ends in less.
const OBEYED: Duration = Duration::from_secs(6);

/// How often it is looked whether they have.
const STEP: Duration = Duration::from_millis(5);

/// What a session is to do.
#[derive(Clone, Debug)]
pub(crate) enum Word {
    /// To judge by another policy from here on.
    Policy(Box<Policy>),
    /// To end, for this reason.
    End(&'static str),
}

/// A session, as others reach it.
#[derive(Debug)]
pub(crate) struct Tenant {
    peer: Peer,
    /// The application's number, once it has a device.
    pub(crate) application: Cell<Option<u64>>,
    word: RefCell<Option<Word>>,
    told: Notify,
}

impl Tenant {
    /// What it is to do, if there is something.
    pub(crate) fn next_word(&self) -> Option<Word> {
        self.word.take()
    }

    /// The same, when there is something.
    pub(crate) async fn word(&self) -> Word {
        loop {
            if let Some(word) = self.next_word() {
                return word;
            }
            // What is told in between is noticed: one permit is kept.
            self.told.notified().await;
        }
    }

    fn tell(&self, word: Word) {
        let mut last = self.word.borrow_mut();
        // An end is an end, whatever comes after it.
        if !matches!(*last, Some(Word::End(_))) {
            *last = Some(word);
        }
        drop(last);
        self.told.notify_one();
    }
}

/// The sessions there are, and the accounts they share.
#[derive(Debug)]
pub(crate) struct Tenants {
    sessions: RefCell<Vec<Rc<Tenant>>>,
    accounts: RefCell<BTreeMap<Key, Arc<Account>>>,
    descriptors: Arc<Descriptors>,
    /// Where services listen, or are about to: there no application may.
    reserved: RefCell<Vec<SocketAddr>>,
}

impl Tenants {
    pub(crate) fn new(config: &Config) -> Tenants {
        Tenants {
            sessions: RefCell::default(),
            accounts: RefCell::default(),
            descriptors: Descriptors::new(descriptors()),
            reserved: RefCell::new(addresses(config)),
        }
    }

    fn account(&self, key: Key, policy: &Policy) -> Arc<Account> {
        let mut accounts = self.accounts.borrow_mut();
        // Those of users that have nothing any more, and whose rules may be others by now.
        accounts.retain(|k, account| *k == key || !account.is_idle());
        let account = accounts
            .entry(key)
            .or_insert_with(|| Account::new(policy, Arc::clone(&self.descriptors)));
        account.grant(policy);
        Arc::clone(account)
    }
}

/// Where the services and forwarders of a configuration listen.
pub(crate) fn addresses(config: &Config) -> Vec<SocketAddr> {
    let services = config.listen.iter().map(|s| s.addr);
    services.chain(config.forward.iter().map(|f| f.addr)).collect()
}

/// Descriptors that applications together may have the process hold, of those that it may have: services,
/// ports and files need descriptors too.
fn descriptors() -> u64 {
    let all = getrlimit(Resource::Nofile).current.unwrap_or(1 << 20);
    all.saturating_sub(OWN).max(all / 2)
}

impl Appliance {
    /// What a client may do on the control socket.
    pub(crate) fn access(&self, peer: Peer) -> Access {
        let config = self.config.borrow();
        let own = rustix::process::geteuid().as_raw();
        config.control.as_ref().map(|c| Access::of(peer, c, own)).unwrap_or_default()
    }

    /// What a client may have of the RNIC itself, and by which rule: by the first that covers it; as usual
    /// for those who may do all; nothing for others.
    fn rule(&self, peer: Peer) -> Option<(Policy, Key)> {
        let config = self.config.borrow();
        let rule = config.clients.iter().find(|r| r.who.covers(peer.uid, peer.gid));
        let (policy, name) = match rule {
            Some(rule) => (rule.policy.clone(), format!("{:?}", rule.who)),
            None if self.access(peer).secrets => (config.usual_policy(), String::new()),
            None => return None,
        };
        let reserved = self.tenants.reserved.borrow().clone();
        Some((Policy { reserved, ..policy }, (name, peer.uid)))
    }

    /// Whether a client may have a device.
    pub(crate) fn may_have_device(&self, peer: Peer) -> bool {
        self.rule(peer).is_some()
    }

    /// A new session of a client: how others reach it, its policy and its account.
    pub(crate) fn admit(&self, peer: Peer) -> Option<(Rc<Tenant>, Policy, Arc<Account>)> {
        let (policy, key) = self.rule(peer)?;
        let account = self.tenants.account(key, &policy);
        let tenant = Rc::new(Tenant {
            peer,
            application: Cell::new(None),
            word: RefCell::default(),
            told: Notify::new(),
        });
        self.tenants.sessions.borrow_mut().push(Rc::clone(&tenant));
        Some((tenant, policy, account))
    }

    /// A session is over.
    pub(crate) fn dismiss(&self, tenant: &Rc<Tenant>) {
        self.tenants.sessions.borrow_mut().retain(|t| !Rc::ptr_eq(t, tenant));
    }

    /// Keeps these addresses from applications from here on. One that listens there ends to.
    pub(crate) fn reserve(&self, addresses: Vec<SocketAddr>) {
        *self.tenants.reserved.borrow_mut() = addresses;
        self.enforce();
    }

    /// The same, and waits until every session that is not stuck has done so.
    pub(crate) async fn reserve_now(&self, addresses: Vec<SocketAddr>) {
        self.reserve(addresses);
        let until = Instant::now() + OBEYED;
        let waits = || self.tenants.sessions.borrow().iter().any(|t| t.word.borrow().is_some());
        while waits() && Instant::now() < until {
            sleep(STEP).await;
        }
    }

    /// Has every session keep to the configuration that is in force.
    pub(crate) fn enforce(&self) {
        for tenant in self.tenants.sessions.borrow().iter() {
            match self.rule(tenant.peer) {
                Some((policy, key)) => {
                    self.tenants.account(key, &policy);
                    tenant.tell(Word::Policy(Box::new(policy)));
                }
                None => tenant.tell(Word::End("no rule of the configuration covers it any more")),
            }
        }
    }

    /// Ends an application: it loses its device and all that it has.
    pub(crate) fn application_kill(&self, application: u64) -> Result<(), Fault> {
        let sessions = self.tenants.sessions.borrow();
        let found = sessions.iter().find(|t| t.application.get() == Some(application));
        let missing = || format!("there is no application {application}");
        let tenant = found.ok_or_else(|| Fault::new(FaultKind::NotFound, missing()))?;
        tenant.tell(Word::End("it was killed"));
        Ok(())
    }
}
