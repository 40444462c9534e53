//! Events that programs have caused, which show that a run has tried everything.

use std::collections::BTreeMap;

/// Counts of events, by name.
#[derive(Clone, Debug, Default)]
pub struct Outcome(pub BTreeMap<String, u64>);

/// Events that must happen in many programs.
const WANTED: [&str; 77] = [
    "handed over",
    "Send",
    "Write",
    "Read",
    "CmpSwap",
    "FetchAdd",
    "Immediate",
    "Recv",
    "flushed",
    "LocalProtection",
    "LocalQpOperation",
    "RemoteAccess",
    "RemoteOperation",
    "LocalLength",
    "invalidated",
    "immediate",
    "Orderly",
    "Reset",
    "Aborted",
    "TimedOut",
    "terminated here",
    "terminated there",
    "lost",
    "retransmits",
    "corrupted",
    "marked",
    "damaged",
    "snapshot stalls",
    "read stalls",
    "placed ahead of a gap",
    "DeregisterTarget",
    "DeregisterLocal",
    "Disconnect",
    "Cut",
    "FastRegister",
    "BindWindow",
    "LocalInvalidate",
    "type 1",
    "type 1 refused",
    "invalidated by the peer",
    "invalidated in use",
    "Write by a window",
    "Read by a window",
    "CmpSwap by a window",
    "FetchAdd by a window",
    "Send by a window",
    "another key",
    "a stale key",
    "not bound",
    "without the right",
    "beside it",
    "without its region",
    "of another domain",
    "of another queue pair",
    "window as a source",
    "sink without the right",
    "DeregisterParent",
    "Valid",
    "Scattered",
    "Memory(Bounds)",
    "Memory(Access)",
    "Memory(NotAssociated)",
    "Memory(InvalidStag)",
    "Length",
    "Rights",
    "Stag",
    "refused: BindData",
    "granted",
    "granted beside the stream",
    "ready to receive",
    "first FPDU lost",
    "taken",
    "left",
    "no shared buffer",
    "waited for a receive",
    "waited for a rate",
    "shared and not complete",
];

impl Outcome {
    pub fn add(&mut self, other: &Outcome) {
        for (what, n) in &other.0 {
            let all = self.0.entry(what.clone()).or_default();
            *all = if what.starts_with("most") { *n.max(all) } else { *all + n };
        }
    }

    pub fn counts(&self) -> impl Iterator<Item = (&str, u64)> {
        WANTED.iter().map(|what| (*what, self.0.get(*what).copied().unwrap_or(0)))
    }

    pub fn count(&mut self, what: impl ToString, n: u64) {
        *self.0.entry(what.to_string()).or_default() += n;
    }
}
