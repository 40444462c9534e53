//! Addresses that ports take from the host's kernel, around a change of addresses.
//!
//! A port takes the frames for an address before the RNIC answers for the address, and until the
//! RNIC no longer does. So no frame of ours reaches the host, whose kernel would answer with a
//! reset.

use core::net::IpAddr;

use heddle_dataplane::Port;

/// A port that takes the frames for some addresses.
pub(super) trait Takes {
    /// Takes the frames for these addresses from here on.
    ///
    /// # Errors
    /// The reason, in one line.
    fn take(&self, addrs: &[IpAddr]) -> Result<(), String>;
}

impl Takes for Port {
    fn take(&self, addrs: &[IpAddr]) -> Result<(), String> {
        self.set_addrs(addrs).map_err(|e| e.to_string())
    }
}

/// Makes `change`, which leads from the addresses `before` of each port to the addresses `after`.
///
/// # Errors
/// The error of `change`, or of a port that cannot take the frames for an address: nothing has
/// changed then.
pub(super) async fn around<P: Takes>(
    ports: &[P],
    before: &[Vec<IpAddr>],
    after: &[Vec<IpAddr>],
    change: impl Future<Output = Result<(), String>>,
) -> Result<(), String> {
    let both = before.iter().zip(after).map(|(before, after)| {
        let come = after.iter().filter(|a| !before.contains(a));
        before.iter().chain(come).copied().collect::<Vec<_>>()
    });
    let taken = ports.iter().zip(both).try_for_each(|(port, addrs)| port.take(&addrs));
    let done = match taken {
        Ok(()) => change.await,
        Err(e) => Err(e),
    };
    let left = if done.is_ok() { after } else { before };
    for (port, addrs) in ports.iter().zip(left) {
        if let Err(e) = port.take(addrs) {
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
        fn take(&self, addrs: &[IpAddr]) -> Result<(), String> {
            let addrs: Vec<_> = addrs.iter().map(ToString::to_string).collect();
            self.said.borrow_mut().push(format!("{}: {}", self.name, addrs.join(" ")));
            if addrs.len() > self.most { Err(format!("{} is full", self.name)) } else { Ok(()) }
        }
    }

    fn run(most: usize, outcome: Result<(), String>) -> (Result<(), String>, Vec<String>) {
        let said = RefCell::default();
        let ports = [("a", 9), ("b", most)].map(|(name, most)| Some { name, most, said: &said });
        let addr = |n: u8| IpAddr::from([10, 0, 0, n]);
        let before = [vec![addr(1), addr(2)], vec![addr(7)]];
        let after = [vec![addr(2), addr(3)], vec![addr(8)]];
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
            "b: 10.0.0.7 10.0.0.8",
            "change",
            "a: 10.0.0.2 10.0.0.3",
            "b: 10.0.0.8",
        ];
        assert_eq!(run(9, Ok(())), (Ok(()), said.map(str::to_owned).to_vec()));
    }

    #[test]
    fn test_addresses_stay_unchanged_when_a_port_cannot_take_their_frames() {
        let (done, said) = run(1, Ok(()));
        assert_eq!(done, Err("b is full".into()));
        assert!(!said.contains(&"change".into()), "{said:?}");
        assert_eq!(said[2..], ["a: 10.0.0.1 10.0.0.2", "b: 10.0.0.7"]);
    }

    #[test]
    fn test_port_stops_taking_frames_of_refused_addresses() {
        let (done, said) = run(9, Err("no".into()));
        assert_eq!(done, Err("no".into()));
        assert_eq!(said[3..], ["a: 10.0.0.1 10.0.0.2", "b: 10.0.0.7"]);
    }
}
