//! Counters of the exports.

use std::collections::BTreeMap;
use std::sync::Arc;

use heddle_metrics::{ExportConnections, ExportSample, NfsSample};
use heddle_nfs::Counts;
use heddle_socket::admin::{Export, ExportedDirectory};

use crate::nfs::Watch;
use crate::service::{NfsExport, ServiceSpec};

/// All exports, including those that are ending.
#[derive(Clone, Debug, Default)]
pub(crate) struct Exports(pub(super) Vec<(ServiceSpec, Arc<Watch>)>);

impl Exports {
    /// Returns the sum of their services' counters; `None` without an export.
    pub(crate) fn counts(&self) -> Option<Counts> {
        self.0.iter().map(|(_, watch)| watch.counts()).reduce(|mut sum, counts| {
            sum.add(&counts);
            sum
        })
    }

    /// Returns a summary of all exports with this listener and service: an ending export may have
    /// the same name as the export in its place.
    pub(crate) fn of(&self, spec: &ServiceSpec) -> Option<Export> {
        let all = self.0.iter().filter(|(of, _)| of == spec);
        let all = all.map(|(_, watch)| (watch.connections(), watch.counts()));
        let sum = all.reduce(|(mut conns, mut sum), (more, counts)| {
            add(&mut conns, more);
            sum.add(&counts);
            (conns, sum)
        });
        let (ExportConnections { rdma1, rdma2, silent, tcp }, counts) = sum?;
        let Counts { calls, failed, read_bytes, written_bytes, .. } = counts;
        Some(Export { rdma1, rdma2, silent, tcp, calls, failed, read_bytes, written_bytes })
    }

    /// Returns each directory of this listener and service.
    pub(crate) fn directories(&self, spec: &ServiceSpec) -> Vec<ExportedDirectory> {
        let exports = spec.kind.nfs().map(|nfs| &nfs.exports[..]).unwrap_or_default();
        let row = |export: &NfsExport| {
            let all = self.0.iter().filter(|(of, _)| of == spec);
            let mut sum = Counts::ZERO;
            all.filter_map(|(_, watch)| watch.counts_of(&export.directory))
                .for_each(|counts| sum.add(&counts));
            let Counts { calls, failed, read_bytes, written_bytes, .. } = sum;
            let export = export.to_string();
            ExportedDirectory { export, calls, failed, read_bytes, written_bytes }
        };
        exports.iter().map(row).collect()
    }

    /// Returns the samples of listeners for Prometheus, one for each address.
    pub(crate) fn listeners(&self) -> Vec<NfsSample> {
        let mut all: BTreeMap<_, NfsSample> = BTreeMap::new();
        for (spec, watch) in &self.0 {
            let sample = watch.sample(spec.addr);
            match all.get_mut(&spec.addr) {
                None => drop(all.insert(spec.addr, sample)),
                Some(sum) => {
                    add(&mut sum.connections, sample.connections);
                    sum.rpc.add(&sample.rpc);
                }
            }
        }
        all.into_values().collect()
    }

    /// Returns the samples of directories for Prometheus, one for each listener and directory.
    pub(crate) fn samples(&self) -> Vec<ExportSample> {
        let mut all: BTreeMap<_, ExportSample> = BTreeMap::new();
        for sample in self.0.iter().flat_map(|(spec, watch)| watch.exports(spec.addr)) {
            match all.get_mut(&(sample.listener.clone(), sample.directory.clone())) {
                None => {
                    let key = (sample.listener.clone(), sample.directory.clone());
                    all.insert(key, sample);
                }
                Some(sum) => join(sum, sample),
            }
        }
        all.into_values().collect()
    }
}

fn add(sum: &mut ExportConnections, more: ExportConnections) {
    let ExportConnections { rdma1, rdma2, silent, tcp } = more;
    sum.rdma1 += rdma1;
    sum.rdma2 += rdma2;
    sum.silent += silent;
    sum.tcp += tcp;
}

fn join(sum: &mut ExportSample, more: ExportSample) {
    sum.counts.add(&more.counts);
    for (status, count) in more.failures {
        match sum.failures.iter_mut().find(|(of, _)| *of == status) {
            Some((_, sum)) => *sum += count,
            None => sum.failures.push((status, count)),
        }
    }
    for timing in more.timings {
        let is = |of: &heddle_nfs::Timing| {
            (of.program, of.procedure) == (timing.program, timing.procedure)
        };
        match sum.timings.iter_mut().find(|of| is(of)) {
            Some(sum) => sum.times.add(&timing.times),
            None => sum.timings.push(timing),
        }
    }
}
