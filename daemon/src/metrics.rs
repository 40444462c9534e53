//! Metrics of the appliance for Prometheus. The workers are asked side by side, with one deadline
//! for all. For a worker that does not answer, the metrics show its last answer, and that the
//! worker is silent.

use core::time::Duration;

use heddle_ctl::{Question, Reply};
use heddle_dataplane::WorkerSnapshot;
use heddle_metrics::{
    Clients, Gateway, HttpCounters, LcoreSample, Memory, PortSample, Sample, ShareSample, Source,
    WorkerSample,
};
use heddle_types::WorkerId;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use crate::appliance::{Appliance, bonds, share};

/// Time that workers have to answer: less than the asking client waits, so that the client hears
/// which workers are silent.
const PATIENCE: Duration = Duration::from_millis(700);

impl Source for Appliance {
    async fn sample(&self) -> Result<Sample, String> {
        let until = Instant::now() + PATIENCE;
        let control = self.put(|reply| Question::Control { reply });
        let places: Vec<_> = self.node.places().collect();
        let asked: Vec<_> = (0..places.len())
            .map(|n| self.put(|reply| Question::Snapshot { worker: WorkerId(n), reply }))
            .collect();
        let ports = self.node.ports();
        let mut workers = Vec::with_capacity(places.len());
        for (n, (place, answer)) in places.iter().zip(asked).enumerate() {
            let snapshot = timeout_at(until, answer).await.ok().and_then(Result::ok);
            let port = ports.get(place.port).map(|p| p.name().to_owned()).unwrap_or_default();
            let up = snapshot.is_some();
            workers.push(WorkerSample { port, up, snapshot: self.last_known(n, snapshot) });
        }
        let control = timeout_at(until, control).await.ok().and_then(Result::ok);
        let control = control.ok_or("the control plane does not answer")?;
        let forwarded = self.forwarded();
        let registry = self.node.hub().registry().mrs();
        let mut registered = 0u64;
        registry.for_each(|mr| registered = registered.saturating_add(mr.len));
        let c = &self.counters;
        Ok(Sample {
            version: env!("CARGO_PKG_VERSION").into(),
            dpdk: heddle_dataplane::Eal::get().map(|e| e.version().to_owned()).unwrap_or_default(),
            uptime: Duration::from_nanos(self.at_ns()),
            draining: self.is_draining(),
            workers,
            ports: ports.iter().enumerate().map(|(n, p)| port(p, n, self)).collect(),
            lcores: self
                .node
                .lcores()
                .map(|l| LcoreSample { lcore: l.lcore, rest: l.rest })
                .collect(),
            nfs: self.exports().listeners(),
            exports: self.exports().samples(),
            applications: self.applications.borrow().sample(),
            shares: self.shares(),
            control: control.counters,
            gateway: Gateway {
                counters: forwarded.counters,
                connections: forwarded.pairs.len() / 2,
            },
            memory: Memory {
                registrations: registry.len(),
                registrations_max: registry.capacity(),
                registered_bytes: registered,
                bytes: u64::from(self.config.borrow().memory.registered) << 20,
                draining: self.node.hub().registry().draining(),
            },
            clients: Clients {
                connected: c.clients.get(),
                requests: c.requests.get(),
                refused: c.refused.get(),
                turned_away: c.turned_away.get(),
                slow: c.slow.get(),
                broken: c.broken.get(),
                evicted: c.evicted.get(),
            },
            // The server of metrics fills these counters in.
            http: HttpCounters::default(),
        })
    }
}

impl Appliance {
    /// Returns the shares of the services and of all applications that run.
    fn shares(&self) -> Vec<ShareSample> {
        let own = share("", "services", self.node.hub().own_share());
        let mut all = vec![own];
        all.extend(self.applications.borrow().shares());
        all
    }

    /// Returns a worker's answer, or else its previous answer.
    fn last_known(
        &self,
        worker: usize,
        answer: Option<Box<WorkerSnapshot>>,
    ) -> Box<WorkerSnapshot> {
        let mut known = self.known.borrow_mut();
        if known.len() <= worker {
            known.resize_with(worker + 1, WorkerSnapshot::default);
        }
        if let Some(answer) = answer {
            known[worker] = *answer;
        }
        Box::new(known[worker])
    }

    /// Sends a question, and leaves the time limit to the caller.
    pub(crate) fn put<T: Send + 'static>(
        &self,
        question: impl FnOnce(Reply<T>) -> Question,
    ) -> oneshot::Receiver<T> {
        let (to, from) = oneshot::channel();
        // If the question cannot be sent, the other end is dropped, and the caller sees that.
        let _ = self.asker.ask(question(Reply::new(move |answer| drop(to.send(answer)))));
        from
    }
}

fn port(port: &heddle_dataplane::Port, number: usize, appliance: &Appliance) -> PortSample {
    let links = appliance.links.of(number);
    let link = links.map_or_else(|| port.link(), |l| l.link);
    PortSample {
        name: port.name().into(),
        driver: port.driver().into(),
        caps: port.caps(),
        inner: port.is_looped(),
        up: link.up,
        mbps: link.mbps,
        link_changes: links.map_or(0, |l| l.changes),
        stats: port.stats(),
        bond: appliance.bonds.of(number).map(|history| bonds::sample(port, &history)),
    }
}
