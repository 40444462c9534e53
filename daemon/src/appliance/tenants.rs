//! Applications of other processes: their policies, and their end.
//!
//! A rule of the configuration sets a client's policy. All clients of one user that a rule covers
//! share one account. When the configuration changes, every session gets its new policy, or ends
//! when no rule covers it any more.

use core::cell::{Cell, RefCell};
use core::net::SocketAddr;
use core::time::Duration;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use heddle_hub::{Policy, ShareTerms};
use heddle_shm::account::{Account, Descriptors};
use heddle_socket::{Fault, FaultKind};
use rustix::process::{Resource, getrlimit};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

use super::Appliance;
use crate::access::{Access, Peer};
use crate::config::Config;

/// The rule that covers a client, as the configuration names it, and the client's user.
type Key = (String, u32);

/// The name of the rule for clients that no rule of the configuration covers.
const USUAL: &str = "-";

/// Descriptors that the process keeps for itself, whatever its limit: half of them, if it has few.
const OWN: u64 = 512;

/// Time that sessions have to carry an order out. A session whose client does not read ends in
/// less.
const OBEYED: Duration = Duration::from_secs(6);

/// Interval at which the appliance checks whether sessions have carried an order out.
const STEP: Duration = Duration::from_millis(5);

/// An order to a session.
#[derive(Clone, Debug)]
pub(crate) enum Word {
    /// Apply another policy from here on.
    Policy(Box<Policy>),
    /// End, for this reason.
    End(&'static str),
}

/// A client that may open a device.
pub(crate) struct Admitted {
    /// Its session, as other code reaches it.
    pub(crate) tenant: Rc<Tenant>,
    /// Its rights and limits.
    pub(crate) policy: Policy,
    /// The resources of all clients of its user and rule.
    pub(crate) account: Arc<Account>,
}

/// A session, as other code reaches it.
#[derive(Debug)]
pub(crate) struct Tenant {
    peer: Peer,
    /// The rule that covered the client when it was admitted.
    rule: String,
    /// The application's number, once it has a device.
    pub(crate) application: Cell<Option<u64>>,
    word: RefCell<Option<Word>>,
    told: Notify,
}

impl Tenant {
    /// Returns the rule that covered the client when it was admitted, as the configuration names
    /// it.
    pub(crate) fn rule(&self) -> &str {
        &self.rule
    }

    /// Takes the order that waits, if there is one.
    pub(crate) fn next_word(&self) -> Option<Word> {
        self.word.take()
    }

    /// Awaits an order.
    pub(crate) async fn word(&self) -> Word {
        loop {
            if let Some(word) = self.next_word() {
                return word;
            }
            // An order that comes between the check and this wait is noticed, because `Notify`
            // keeps one permit.
            self.told.notified().await;
        }
    }

    fn tell(&self, word: Word) {
        let mut last = self.word.borrow_mut();
        // A later order does not replace the order to end.
        if !matches!(*last, Some(Word::End(_))) {
            *last = Some(word);
        }
        drop(last);
        self.told.notify_one();
    }
}

/// All sessions, and the accounts that they share.
#[derive(Debug)]
pub(crate) struct Tenants {
    sessions: RefCell<Vec<Rc<Tenant>>>,
    accounts: RefCell<BTreeMap<Key, Arc<Account>>>,
    descriptors: Arc<Descriptors>,
    /// Addresses where services listen, or are about to; no application may listen there.
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
        // Accounts of users that have nothing any more go, because the rules for those users may
        // have changed.
        accounts.retain(|k, account| *k == key || !account.is_idle());
        let account = accounts
            .entry(key)
            .or_insert_with(|| Account::new(policy, Arc::clone(&self.descriptors)));
        account.grant(policy);
        Arc::clone(account)
    }
}

/// Returns the addresses where the services and forwarders of a configuration listen.
pub(crate) fn addresses(config: &Config) -> Vec<SocketAddr> {
    let services = config.listen.iter().map(|s| s.addr);
    services.chain(config.forward.iter().map(|f| f.addr)).collect()
}

/// Returns the number of descriptors that applications together may have the process hold. The rest
/// of the process's limit is for services, ports and files.
fn descriptors() -> u64 {
    let all = getrlimit(Resource::Nofile).current.unwrap_or(1 << 20);
    all.saturating_sub(OWN).max(all / 2)
}

impl Appliance {
    /// Returns a client's rights on the control socket.
    pub(crate) fn access(&self, peer: Peer) -> Access {
        let config = self.config.borrow();
        let own = rustix::process::geteuid().as_raw();
        config.control.as_ref().map(|c| Access::of(peer, c, own)).unwrap_or_default()
    }

    /// Returns a client's policy for the RNIC itself, and the rule that sets it: the first rule
    /// that covers the client, the usual policy for clients with all rights, and nothing for other
    /// clients.
    fn rule(&self, peer: Peer) -> Option<(Policy, Key)> {
        let config = self.config.borrow();
        let rule = config.clients.iter().find(|r| r.who.covers(peer.uid, peer.gid));
        let (policy, name) = match rule {
            Some(rule) => (rule.policy.clone(), rule.who.to_string()),
            None if self.access(peer).secrets => (config.usual_policy(), USUAL.to_owned()),
            None => return None,
        };
        let reserved = self.tenants.reserved.borrow().clone();
        Some((Policy { reserved, ..policy }, (name, peer.uid)))
    }

    /// Returns true if a client may have a device.
    pub(crate) fn may_have_device(&self, peer: Peer) -> bool {
        self.rule(peer).is_some()
    }

    /// Admits a client that may have a device.
    pub(crate) fn admit(&self, peer: Peer) -> Option<Admitted> {
        let (policy, key) = self.rule(peer)?;
        let rule = key.0.clone();
        let account = self.tenants.account(key, &policy);
        let tenant = Rc::new(Tenant {
            peer,
            rule,
            application: Cell::new(None),
            word: RefCell::default(),
            told: Notify::new(),
        });
        self.tenants.sessions.borrow_mut().push(Rc::clone(&tenant));
        Some(Admitted { tenant, policy, account })
    }

    /// Removes a session that is over.
    pub(crate) fn dismiss(&self, tenant: &Rc<Tenant>) {
        self.tenants.sessions.borrow_mut().retain(|t| !Rc::ptr_eq(t, tenant));
    }

    /// Keeps these addresses from applications from here on. An application that listens at one of
    /// them loses its listener.
    pub(crate) fn reserve(&self, addresses: Vec<SocketAddr>) {
        *self.tenants.reserved.borrow_mut() = addresses;
        self.enforce();
    }

    /// Reserves the addresses, and waits until every session that is not stuck has given them up.
    pub(crate) async fn reserve_now(&self, addresses: Vec<SocketAddr>) {
        self.reserve(addresses);
        let until = Instant::now() + OBEYED;
        let waits = || self.tenants.sessions.borrow().iter().any(|t| t.word.borrow().is_some());
        while waits() && Instant::now() < until {
            sleep(STEP).await;
        }
    }

    /// Makes every session keep to the configuration in force.
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

    /// Sets the weight of the services.
    pub(crate) fn set_weight(&self, weight: u32) {
        let terms = ShareTerms { weight, ..ShareTerms::default() };
        self.node.hub().own_share().set(terms);
    }

    /// Ends an application, which loses its device and everything it has.
    pub(crate) fn application_kill(&self, application: u64) -> Result<(), Fault> {
        let sessions = self.tenants.sessions.borrow();
        let found = sessions.iter().find(|t| t.application.get() == Some(application));
        let missing = || format!("there is no application {application}");
        let tenant = found.ok_or_else(|| Fault::new(FaultKind::NotFound, missing()))?;
        tenant.tell(Word::End("it was killed"));
        Ok(())
    }
}
