//! A sample with everything in it, and a reader of the text that does not depend on the writer.

#![allow(dead_code, reason = "not all of it in every test")]

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use heddle_base::Histogram;
use heddle_dataplane::{PortCaps, RestCounters, WorkerSnapshot};
use heddle_metrics::{
    ApplicationSample, BondSample, Clients, ExportConnections, ExportSample, LcoreSample,
    MemberSample, Memory, NfsSample, PortSample, Sample, ShareSample, WorkerSample,
};
use heddle_nfs::wire::Status;
use heddle_nfs::{Counts, Timing};
use heddle_rpc::server::ServerCounters;

pub(crate) fn sample() -> Sample {
    let mut s = WorkerSnapshot::default();
    s.worker.polls = 7;
    s.worker.busy_ns = 2_500_000_000;
    s.engine.tcp.retransmits = 3;
    s.times.turns.record(700);
    s.times.turns.record(1_000_000);
    let worker = |port: &str, up, snapshot: WorkerSnapshot| WorkerSample {
        port: port.into(),
        up,
        snapshot: Box::new(snapshot),
    };
    let caps = PortCaps { rx_tcp_checksum: true, multi_segs: true, ..PortCaps::default() };
    let mut sample = Sample {
        version: "1.2.3".into(),
        dpdk: "DPDK 22.11".into(),
        uptime: Duration::from_millis(12_500),
        draining: true,
        workers: vec![worker("east", true, s), worker("we\"st", false, WorkerSnapshot::default())],
        ports: vec![
            PortSample {
                name: "east".into(),
                up: true,
                mbps: Some(10_000),
                caps,
                bond: Some(BondSample {
                    switches: 3,
                    backup_drops: 7,
                    members: vec![MemberSample {
                        device: "0000:03:00.0".into(),
                        up: true,
                        active: true,
                        link_changes: 2,
                        ..MemberSample::default()
                    }],
                }),
                ..PortSample::default()
            },
            PortSample { name: "we\"st".into(), ..PortSample::default() },
        ],
        lcores: vec![LcoreSample {
            lcore: 3,
            rest: RestCounters { rest_sleeps: 5, ..RestCounters::default() },
        }],
        applications: vec![ApplicationSample {
            user: "1000".into(),
            name: "dat\"a".into(),
            devices: 2,
            memory: 1 << 20,
            over_quota: 1,
            ..ApplicationSample::default()
        }],
        shares: vec![
            ShareSample { rule: "services".into(), weight: 4, ..ShareSample::default() },
            ShareSample {
                user: "1000".into(),
                rule: "group:7".into(),
                weight: 2,
                rate: Some(1_250_000_000),
                sent: 9000,
                waits: 3,
                waited: Duration::from_millis(250),
            },
        ],
        nfs: vec![NfsSample {
            listener: "10.0.0.1:20049".into(),
            connections: ExportConnections { rdma2: 3, tcp: 1, ..ExportConnections::default() },
            rpc: ServerCounters { calls_repeated: 2, memory_waits: 5, ..ServerCounters::ZERO },
        }],
        exports: ["/srv/a", "/srv/b\""].map(export).into(),
        memory: Memory { registrations: 2, registered_bytes: 1 << 20, ..Memory::default() },
        clients: Clients { connected: 1, ..Clients::default() },
        ..Sample::default()
    };
    sample.control.startups.active.record(5_000_000);
    sample
}

fn export(directory: &str) -> ExportSample {
    let mut read = Timing { program: "NFS", procedure: "READ", times: Histogram::ZERO };
    read.times.record(3_000_000);
    ExportSample {
        listener: "10.0.0.1:20049".into(),
        directory: directory.into(),
        counts: Counts { calls: 9, read_bytes: 4096, ..Counts::ZERO },
        failures: vec![(Status::NOENT, 4), (Status::ROFS, 1)],
        timings: vec![read],
    }
}

/// A family of the text.
#[derive(Debug, Default)]
pub(crate) struct Family {
    pub(crate) kind: String,
    pub(crate) help: String,
    /// Name, labels and value of each line.
    pub(crate) lines: Vec<(String, BTreeMap<String, String>, f64)>,
}

impl Family {
    /// Returns the names of labels that any line has.
    pub(crate) fn labels(&self) -> BTreeSet<&str> {
        self.lines.iter().flat_map(|l| l.1.keys()).map(String::as_str).collect()
    }
}

fn labels(text: &str) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    let mut rest = text;
    while !rest.is_empty() {
        let (name, value) = rest.split_once("=\"").unwrap();
        let mut out = String::new();
        let mut chars = value.char_indices();
        let end = loop {
            match chars.next().unwrap() {
                (at, '"') => break at,
                (_, '\\') => match chars.next().unwrap().1 {
                    'n' => out.push('\n'),
                    c => out.push(c),
                },
                (_, c) => out.push(c),
            }
        };
        assert!(all.insert(name.to_owned(), out).is_none(), "{text}");
        rest = value[end + 1..].trim_start_matches(',');
    }
    all
}

/// Reads the text. Panics where the text does not follow the format.
pub(crate) fn read(text: &str) -> BTreeMap<String, Family> {
    let mut all: BTreeMap<String, Family> = BTreeMap::new();
    let mut open = String::new();
    assert!(text.ends_with('\n'));
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').unwrap();
            open = name.to_owned();
            let family = Family { help: help.to_owned(), ..Family::default() };
            assert!(all.insert(name.to_owned(), family).is_none(), "{name} twice");
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert_eq!(name, open);
            all.get_mut(name).unwrap().kind = kind.to_owned();
        } else {
            let (key, value) = line.rsplit_once(' ').unwrap();
            let (name, inside) = key.split_once('{').unwrap_or((key, "}"));
            let value = value.parse().unwrap();
            let line = (name.to_owned(), labels(inside.strip_suffix('}').unwrap()), value);
            let family = all.get_mut(&open).unwrap();
            let suffixes =
                if family.kind == "histogram" { &["_bucket", "_sum", "_count"][..] } else { &[""] };
            assert!(suffixes.iter().any(|s| name == format!("{open}{s}")), "{name} in {open}");
            family.lines.push(line);
        }
    }
    all
}
