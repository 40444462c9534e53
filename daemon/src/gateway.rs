//! The gateway between InfiniBand's connection management and iWARP, on a thread of its own.
//!
//! The thread sleeps while nothing happens, and keeps a copy of its state for other threads to
//! read.

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender};
use heddle_ctl::{Node, Question};
use heddle_gateway::{Gateway, GatewayCounters, MAX_FORWARDED, Rule};
use heddle_types::{AppId, CmId, ListenerId};
use heddle_verbs::{DeviceError, Sleeper, Waker};

use crate::config::Forward;
use crate::services::{Done, Stage};

/// Longest sleep of the thread.
const NAP: Duration = Duration::from_secs(1);

enum Order {
    Start {
        forward: Forward,
        rule: Box<Rule>,
        done: Done,
    },
    Stop {
        addr: SocketAddr,
        done: Done,
    },
    /// The ports have these addresses from now on.
    Addresses(Vec<IpAddr>),
    /// Forward nothing more, and end all connections.
    End,
    /// The owner has dropped the thread's handle.
    Quit,
}

/// The handle of the thread, which ends when the handle is dropped.
pub(crate) struct GatewayThread {
    app: AppId,
    orders: Sender<Order>,
    waker: Waker,
    shown: Arc<Mutex<Shown>>,
    thread: Option<JoinHandle<()>>,
}

/// A copy of the gateway's state.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shown {
    /// Forwarders, with the stage of each listener.
    pub(crate) rules: Vec<(Forward, Stage)>,
    /// The other connection of each forwarded connection.
    pub(crate) pairs: BTreeMap<CmId, CmId>,
    /// Counters of the gateway.
    pub(crate) counters: GatewayCounters,
}

struct Running {
    forward: Forward,
    listener: ListenerId,
    stage: Stage,
    /// The caller that waits until the forwarder listens.
    done: Option<Done>,
}

/// Returns the addresses of all ports.
pub(crate) fn addresses(ports: impl IntoIterator<Item = heddle_tcp::Cidr>) -> Vec<IpAddr> {
    ports.into_iter().map(|c| c.addr()).collect()
}

impl GatewayThread {
    /// Starts the thread.
    ///
    /// # Errors
    /// When there is no memory, or no thread.
    pub(crate) fn start(node: &Node, ours: Vec<IpAddr>) -> std::io::Result<GatewayThread> {
        let sleeper = Sleeper::new();
        let waker = sleeper.waker();
        let most = MAX_FORWARDED;
        let asker = node.asker();
        let refuse = move |app, id, reason| {
            // Without an RNIC there is no asker any more either.
            let _ = asker.ask(Question::Refuse { app, id, reason });
        };
        let made = Gateway::new(node.hub(), refuse, ours, most, Some(waker.clone()));
        let gateway = made.map_err(|e: DeviceError| std::io::Error::other(e.to_string()))?;
        let app = gateway.device().app();
        let (orders, taken) = crossbeam_channel::unbounded();
        let shown = Arc::<Mutex<Shown>>::default();
        let show = Arc::clone(&shown);
        let run = move || run(gateway, &taken, &sleeper, &show);
        let thread = std::thread::Builder::new().name("heddle-gateway".into()).spawn(run)?;
        Ok(GatewayThread { app, orders, waker, shown, thread: Some(thread) })
    }

    /// Returns the application that has the forwarded connections.
    pub(crate) fn app(&self) -> AppId {
        self.app
    }

    /// Forwards connections. `done` is called when the forwarder listens.
    pub(crate) fn add(&self, forward: Forward, rule: Rule, done: Done) {
        self.order(Order::Start { forward, rule: Box::new(rule), done });
    }

    /// Takes no more connections at `addr`. Forwarded connections from there go on.
    pub(crate) fn stop(&self, addr: SocketAddr, done: Done) {
        self.order(Order::Stop { addr, done });
    }

    /// Sets the new addresses of the ports.
    pub(crate) fn set_addresses(&self, ours: Vec<IpAddr>) {
        self.order(Order::Addresses(ours));
    }

    /// Ends all connections in order, without waiting for that.
    pub(crate) fn end(&self) {
        self.order(Order::End);
    }

    /// Returns a copy of the gateway's state.
    pub(crate) fn shown(&self) -> Shown {
        lock(&self.shown).clone()
    }

    /// Returns true if the thread runs; it ends early only by a defect.
    pub(crate) fn is_running(&self) -> bool {
        self.thread.as_ref().is_some_and(|t| !t.is_finished())
    }

    /// Sends an order. If the thread has ended, the order is dropped with its caller's answer.
    fn order(&self, order: Order) {
        let _ = self.orders.send(order);
        self.waker.wake();
    }
}

impl Drop for GatewayThread {
    fn drop(&mut self) {
        self.order(Order::Quit);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

fn run(mut f: Gateway, orders: &Receiver<Order>, sleeper: &Sleeper, shown: &Mutex<Shown>) {
    let mut all: Vec<Running> = Vec::new();
    loop {
        let mut told = false;
        while let Ok(order) = orders.try_recv() {
            told = true;
            match order {
                Order::Start { forward, rule, done } => {
                    start(&mut f, &mut all, forward, &rule, done)
                }
                Order::Stop { addr, done } => {
                    stop(&mut f, &mut all, addr);
                    done(Ok(()));
                }
                Order::Addresses(ours) => f.set_addresses(ours),
                Order::End => {
                    f.end();
                    all.clear();
                }
                Order::Quit => return,
            }
        }
        let busy = f.step();
        if f.take_news() || told {
            all.retain_mut(|r| r.settle(&f));
            show(&f, &all, &mut lock(shown));
        }
        if !busy {
            sleeper.sleep(NAP, || f.has_work() || !orders.is_empty());
        }
    }
}

fn show(f: &Gateway, all: &[Running], shown: &mut Shown) {
    shown.rules = all.iter().map(|r| (r.forward, r.stage)).collect();
    shown.pairs = f.pairs().flat_map(|(a, b)| [(a, b), (b, a)]).collect();
    shown.counters = *f.counters();
}

fn start(f: &mut Gateway, all: &mut Vec<Running>, forward: Forward, rule: &Rule, done: Done) {
    match f.add(rule) {
        Ok(listener) => {
            all.push(Running { forward, listener, stage: Stage::Starting, done: Some(done) });
        }
        Err(e) => done(Err(e.to_string())),
    }
}

/// Stops a forwarder. A listener that has already stopped by itself has left the list, which is the
/// state that the caller asked for.
fn stop(f: &mut Gateway, all: &mut Vec<Running>, addr: SocketAddr) {
    let Some(found) = all.iter().position(|r| r.forward.addr == addr) else { return };
    let r = all.remove(found);
    f.remove(r.listener);
    if let Some(done) = r.done {
        done(Err("it was stopped before it listened".into()));
    }
}

impl Running {
    /// Answers the caller that waits; returns false if the forwarder does not listen, or no longer
    /// does.
    fn settle(&mut self, f: &Gateway) -> bool {
        match f.is_listening(self.listener) {
            Ok(false) => return true,
            Ok(true) => self.stage = Stage::Listening,
            Err(e) if self.done.is_none() => {
                tracing::error!("{} on {}: {e}", self.forward, self.forward.addr);
                return false;
            }
            Err(e) => {
                if let Some(done) = self.done.take() {
                    done(Err(e.to_string()));
                }
                return false;
            }
        }
        if let Some(done) = self.done.take() {
            done(Ok(()));
        }
        true
    }
}
