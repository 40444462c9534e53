//! Frames that ports take, around a change of addresses and VLANs.
//!
//! A port takes the frames for an address before the RNIC answers for the address, and until the
//! RNIC no longer does. So no frame of ours reaches the host, whose kernel would answer with a
//! reset. The same holds for the frames of a VLAN, where a device filters VLANs.

use core::net::IpAddr;

use heddle_dataplane::Port;
use heddle_tcp::Vid;

/// The frames that a port takes.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Taken {
    /// Frames for these addresses.
    pub(super) addrs: Vec<IpAddr>,
    /// Frames of these VLANs, besides those of no VLAN.
    pub(super) vlans: Vec<Vid>,
}

impl Taken {
    /// Returns the frames of both.
    fn and(&self, other: &Taken) -> Taken {
        let mut both = self.clone();
        both.addrs.extend(other.addrs.iter().filter(|a| !self.addrs.contains(a)));
        both.vlans.extend(other.vlans.iter().filter(|v| !self.vlans.contains(v)));
        both
    }
}

/// A port that takes some frames.
pub(super) trait Takes {
    /// Takes these frames from here on.
    ///
    /// # Errors
    /// The reason, in one line.
    fn take(&self, frames: &Taken) -> Result<(), String>;
}

impl Takes for Port {
    fn take(&self, frames: &Taken) -> Result<(), String> {
        self.set_vlans(&frames.vlans).map_err(|e| e.to_string())?;
        self.set_addrs(&frames.addrs).map_err(|e| e.to_string())
    }
}

/// Makes `change`, which leads from the frames `before` of each port to the frames `after`.
///
/// # Errors
/// The error of `change`, or of a port that cannot take the frames for an address or of a VLAN:
/// nothing has changed then.
pub(super) async fn around<P: Takes>(
    ports: &[P],
    before: &[Taken],
    after: &[Taken],
    change: impl Future<Output = Result<(), String>>,
) -> Result<(), String> {
    let both = before.iter().zip(after).map(|(before, after)| before.and(after));
    let taken = ports.iter().zip(both).try_for_each(|(port, frames)| port.take(&frames));
    let done = match taken {
        Ok(()) => change.await,
        Err(e) => Err(e),
    };
    let left = if done.is_ok() { after } else { before };
    for (port, frames) in ports.iter().zip(left) {
        if let Err(e) = port.take(frames) {
            // Frames for the removed addresses are dropped until a later call succeeds.
            tracing::warn!("what is for an address that is ours no more still comes: {e}");
        }
    }
    done
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// Records the addresses that it gets, and refuses more than it has room for.
    struct Some<'a> {
        name: &'static str,
        most: usize,
        said: &'a RefCell<Vec<String>>,
    }

    impl Takes for Some<'_> {
        fn take(&self, frames: &Taken) -> Result<(), String> {
            let addrs = frames.addrs.iter().map(ToString::to_string);
            let vlans = frames.vlans.iter().map(|v| format!("VLAN {v}"));
            let all: Vec<_> = addrs.chain(vlans).collect();
            self.said.borrow_mut().push(format!("{}: {}", self.name, all.join(" ")));
            if frames.addrs.len() > self.most {
                Err(format!("{} is full", self.name))
            } else {
                Ok(())
            }
        }
    }

    fn run(most: usize, outcome: Result<(), String>) -> (Result<(), String>, Vec<String>) {
        let said = RefCell::default();
        let ports = [("a", 9), ("b", most)].map(|(name, most)| Some { name, most, said: &said });
        let addr = |n: u8| IpAddr::from([10, 0, 0, n]);
        let vlan = |n| Vid::new(n).unwrap();
        let of = |addrs: &[u8], vlans: &[u16]| Taken {
            addrs: addrs.iter().map(|n| addr(*n)).collect(),
            vlans: vlans.iter().map(|n| vlan(*n)).collect(),
        };
        let before = [of(&[1, 2], &[]), of(&[7], &[5])];
        let after = [of(&[2, 3], &[]), of(&[8], &[6])];
        let change = async {
            said.borrow_mut().push("change".into());
            outcome
        };
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let done = runtime.block_on(around(&ports, &before, &after, change));
        (done, said.into_inner())
    }

    #[test]
    fn test_port_takes_frames_before_address_is_added_until_it_is_removed() {
        let said = [
            "a: 10.0.0.1 10.0.0.2 10.0.0.3",
            "b: 10.0.0.7 10.0.0.8 VLAN 5 VLAN 6",
            "change",
            "a: 10.0.0.2 10.0.0.3",
            "b: 10.0.0.8 VLAN 6",
        ];
        assert_eq!(run(9, Ok(())), (Ok(()), said.map(str::to_owned).to_vec()));
    }

    #[test]
    fn test_addresses_stay_unchanged_when_a_port_cannot_take_their_frames() {
        let (done, said) = run(1, Ok(()));
        assert_eq!(done, Err("b is full".into()));
        assert!(!said.contains(&"change".into()), "{said:?}");
        assert_eq!(said[2..], ["a: 10.0.0.1 10.0.0.2", "b: 10.0.0.7 VLAN 5"]);
    }

    #[test]
    fn test_port_stops_taking_frames_of_refused_addresses() {
        let (done, said) = run(9, Err("no".into()));
        assert_eq!(done, Err("no".into()));
        assert_eq!(said[3..], ["a: 10.0.0.1 10.0.0.2", "b: 10.0.0.7 VLAN 5"]);
    }
}
