//! How frames come to the queues of a port.

use super::caps::Capabilities;
use super::quirks::Quirks;
use heddle_dpdk_sys as sys;

/// How frames come to the queues of a port, which tells a worker whether a flow is its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QueueSpread {
    /// There is one queue.
    Single,
    /// TCP frames come to queue `table[hash % table.len()]`, where `hash` is Toeplitz's over the
    /// source and the destination address and then both ports, as they stand in the headers. All
    /// other frames may come to any queue.
    Rss {
        /// The key of the hash, in the order of its use: 40 bytes or 52.
        key: Vec<u8>,
        /// Queues; the length of the table is a power of two.
        table: Vec<u16>,
    },
    /// Frames that the other port of a pair sends by its queue `i` come to queue `i` here.
    Joined,
    /// Any frame may come to any queue. Workers have to hand on frames that are not theirs.
    Unknown,
}

/// The key unless the configuration has another: without meaning, and in no document, but always
/// the same. An attacker who knows the key can choose addresses and ports that all come to one
/// queue; configure another key where that matters.
pub const RSS_KEY: [u8; 52] = [
    0x9f, 0x1c, 0x63, 0xd8, 0x2b, 0x7e, 0x04, 0xa5, 0x51, 0xf6, 0x3a, 0xc9, 0x8d, 0x12, 0xe7,
    0x70, //
    0x4c, 0xb3, 0x29, 0x96, 0xfd, 0x05, 0x6a, 0xde, 0x38, 0x81, 0xc7, 0x5f, 0xa0, 0x1b, 0x74,
    0xe2, //
    0x0d, 0x99, 0x46, 0xbb, 0x53, 0x2e, 0xf8, 0x67, 0x90, 0xac, 0x15, 0xdb, 0x3f, 0x82, 0xc4,
    0x6e, //
    0x21, 0xf3, 0x5a, 0xb8,
];

/// Bytes of the key that addresses and ports of IPv6 use. Every NIC with Toeplitz has as many.
const KEY: usize = 40;

/// The setup that makes a device spread frames.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RssPlan {
    /// The hashed headers: TCP over IPv4, and over IPv6 if the device supports it. Nothing else, so
    /// that all other frames come to the first queue with most NICs.
    pub types: u64,
    /// The key, as long as the device needs it.
    pub key: Vec<u8>,
    /// The redirection table, with as many entries as the device has; queues take turns in it.
    pub table: Vec<u16>,
}

/// Decides how a device feeds `queues` queues. An error says in a few words why it cannot.
pub(super) fn plan(
    caps: &Capabilities,
    quirks: &Quirks,
    queues: u16,
    key: &[u8; 52],
) -> Result<Option<RssPlan>, String> {
    if queues <= 1 || caps.joined {
        return Ok(None);
    }
    let has = |what| caps.rss_types & what == what;
    if quirks.spreads_otherwise || !has(sys::HEDDLE_RSS_TCP4) {
        return Err("it does not spread TCP over queues by a hash that is known".into());
    }
    let bytes = usize::from(caps.hash_key_size);
    if caps.reta_size == 0 || !(KEY..=key.len()).contains(&bytes) {
        return Err("it does not show the key and the table it spreads by".into());
    }
    if let Some(most) = quirks.rss_queues.filter(|&most| most < queues) {
        return Err(format!("its hash feeds {most} queues at most"));
    }
    if queues > caps.reta_size {
        return Err(format!("its table feeds {} queues at most", caps.reta_size));
    }
    // A bifurcated device has a table for each rule, and the table may be as long as needed.
    let entries = match quirks.bifurcated {
        true => queues.checked_next_power_of_two().map_or(caps.reta_size, |n| n.max(128)),
        false => caps.reta_size,
    };
    let types = caps.rss_types & (sys::HEDDLE_RSS_TCP4 | sys::HEDDLE_RSS_TCP6);
    Ok(Some(RssPlan {
        types,
        key: key[..bytes].to_vec(),
        table: (0..entries.min(caps.reta_size)).map(|i| i % queues).collect(),
    }))
}

/// The behavior that a device reports after its setup.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RssFound {
    /// Key and types that the device reports.
    pub(super) hash: Option<(Vec<u8>, u64)>,
    /// Whether the device accepted the table.
    pub(super) table_set: bool,
    /// The table that the device reports.
    pub(super) table: Option<Vec<u16>>,
}

impl RssFound {
    /// Decides by the device's report, and not by the setup: some devices keep a key or a table of
    /// their own without an error. An error says what is unknown.
    pub(super) fn settle(self, plan: &RssPlan, queues: u16) -> Result<QueueSpread, &'static str> {
        let Some((key, types)) = self.hash else {
            return Err("it does not say which key it uses");
        };
        if types & sys::HEDDLE_RSS_TCP4 == 0 {
            return Err("it does not hash the ports of TCP");
        }
        if key.len() < KEY || key.iter().all(|&k| k == 0) {
            return Err("it does not say which key it uses");
        }
        let table = match self.table {
            Some(table) => table,
            None if self.table_set => plan.table.clone(),
            None => return Err("its redirection table can be neither set nor read"),
        };
        if table.is_empty() || table.iter().any(|&q| q >= queues) {
            return Err("its redirection table names queues that are not there");
        }
        if !table.len().is_power_of_two() {
            return Err("its redirection table is not looked up by the low bits of the hash");
        }
        if (0..queues).any(|q| !table.contains(&q)) {
            return Err("its redirection table leaves queues without frames");
        }
        Ok(QueueSpread::Rss { key, table })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan_of(queues: u16) -> RssPlan {
        let caps = Capabilities {
            rss_types: sys::HEDDLE_RSS_TCP4,
            reta_size: 8,
            hash_key_size: 40,
            ..Capabilities::default()
        };
        plan(&caps, &Quirks::default(), queues, &RSS_KEY).unwrap().unwrap()
    }

    fn found(p: &RssPlan) -> RssFound {
        RssFound {
            hash: Some((p.key.clone(), p.types)),
            table_set: true,
            table: Some(p.table.clone()),
        }
    }

    #[test]
    fn test_rss_table_assigns_queues_in_turn() {
        let p = plan_of(3);
        assert_eq!(p.table, [0, 1, 2, 0, 1, 2, 0, 1]);
        assert_eq!((p.types, p.key.as_slice()), (sys::HEDDLE_RSS_TCP4, &RSS_KEY[..40]));
    }

    #[test]
    fn test_queue_spread_uses_key_and_table_reported_by_device() {
        let p = plan_of(2);
        let rss =
            |key: &[u8], table: &[u16]| QueueSpread::Rss { key: key.into(), table: table.into() };
        assert_eq!(found(&p).settle(&p, 2), Ok(rss(&p.key, &p.table)));
        let own = [7; 40];
        let other = RssFound {
            hash: Some((own.into(), p.types)),
            table: Some(vec![1, 0]),
            table_set: false,
        };
        assert_eq!(other.settle(&p, 2), Ok(rss(&own, &[1, 0])), "key and table of its own");
        let unread = RssFound { table: None, ..found(&p) };
        assert_eq!(unread.settle(&p, 2), Ok(rss(&p.key, &p.table)), "set, and cannot be read");
    }

    #[test]
    fn test_queue_spread_error_names_what_device_does_not_report() {
        let p = plan_of(2);
        let is = |f: RssFound, why: &str| {
            let e = f.settle(&p, 2).unwrap_err();
            assert!(e.contains(why), "{e}");
        };
        is(RssFound { hash: None, ..found(&p) }, "which key");
        is(RssFound { hash: Some((vec![0; 40], p.types)), ..found(&p) }, "which key");
        is(RssFound { hash: Some((vec![1; 16], p.types)), ..found(&p) }, "which key");
        is(RssFound { hash: Some((p.key.clone(), sys::HEDDLE_RSS_TCP6)), ..found(&p) }, "ports");
        is(RssFound { table: None, table_set: false, ..found(&p) }, "neither");
        is(RssFound { table: Some(vec![0, 2]), ..found(&p) }, "not there");
        is(RssFound { table: Some(vec![0, 0]), ..found(&p) }, "without frames");
        is(RssFound { table: Some(vec![0, 1, 0]), ..found(&p) }, "low bits");
        is(RssFound { table: Some(vec![]), ..found(&p) }, "not there");
    }

    /// No window of 32 bits of the key is like another, as far as the fields of IPv4 go: each bit
    /// of these fields changes the hash in its own way.
    #[test]
    fn test_rss_key_gives_each_header_bit_its_own_hash() {
        let bit = |i: usize| RSS_KEY[i / 8] >> (7 - i % 8) & 1;
        let window = |i: usize| (i..i + 32).fold(0u32, |w, b| w << 1 | u32::from(bit(b)));
        let all: std::collections::BTreeSet<u32> = (0..96).map(window).collect();
        assert_eq!(all.len(), 96);
        assert!(!all.contains(&0));
    }
}
