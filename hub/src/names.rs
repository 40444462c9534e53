//! Addresses and ports that are taken before a listener starts there.
//!
//! The connection manager owns listeners. This module answers what a program has to know at once:
//! the port that it gets if it asks for any, and that no other program gets this port before it
//! listens.

use core::net::SocketAddr;
use std::collections::BTreeMap;
use std::sync::Mutex;

use heddle_base::Random;
use heddle_types::{AppId, ListenAt, ListenerId};
use heddle_verbs::{DYNAMIC_PORTS, ReserveError};

use crate::lock;

/// The holder of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    /// A reservation with this number.
    Reserved(u64),
    /// A listener without a reservation.
    Listener(ListenerId),
}

#[derive(Debug, Default)]
pub(crate) struct Names(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    by_port: BTreeMap<u16, Vec<(ListenAt, AppId, Holder)>>,
    next: u64,
}

impl Names {
    /// Reserves `addr`, without IPv4 if `v6_only`. If it has no port, chooses one for which `may`
    /// returns true.
    ///
    /// # Errors
    /// [`ReserveError::InUse`], [`ReserveError::NoPort`].
    pub(crate) fn reserve(
        &self,
        app: AppId,
        (addr, v6_only): (SocketAddr, bool),
        random: &Mutex<Random>,
        may: impl Fn(SocketAddr) -> bool,
    ) -> Result<(SocketAddr, u64), ReserveError> {
        let at = ListenAt::new(addr.ip(), v6_only);
        let mut table = lock(&self.0);
        let chosen = match addr.port() {
            0 => table.choose(addr, random, may).ok_or(ReserveError::NoPort)?,
            port if table.holders(port, at).next().is_some() => return Err(ReserveError::InUse),
            _ => addr,
        };
        table.next += 1;
        let number = table.next;
        let entry = (at, app, Holder::Reserved(number));
        table.by_port.entry(chosen.port()).or_default().push(entry);
        Ok((chosen, number))
    }

    /// Notes that a listener starts at `addr`, by this reservation or without one. Returns false if
    /// another holder has reserved the address.
    pub(crate) fn listen(
        &self,
        app: AppId,
        (addr, v6_only): (SocketAddr, bool),
        id: ListenerId,
        reserved: Option<u64>,
    ) -> bool {
        let (at, port) = (ListenAt::new(addr.ip(), v6_only), addr.port());
        let mut table = lock(&self.0);
        if let Some(number) = reserved {
            return table.holders(port, at).any(|held| held == (at, Holder::Reserved(number)));
        }
        if table.holders(port, at).any(|(_, holder)| matches!(holder, Holder::Reserved(_))) {
            return false;
        }
        // The connection manager answers where another listener is.
        if table.holders(port, at).next().is_none() {
            let entry = (at, app, Holder::Listener(id));
            table.by_port.entry(port).or_default().push(entry);
        }
        true
    }

    /// Frees the address of a holder.
    pub(crate) fn give_up(&self, holder: Holder) {
        self.retain(|(_, _, held)| *held != holder);
    }

    /// Frees all addresses of an application.
    pub(crate) fn give_up_all_of(&self, app: AppId) {
        self.retain(|(_, of, _)| *of != app);
    }

    fn retain(&self, keep: impl Fn(&(ListenAt, AppId, Holder)) -> bool) {
        lock(&self.0).by_port.retain(|_, all| {
            all.retain(&keep);
            !all.is_empty()
        });
    }
}

impl Table {
    /// Returns the holders that exclude another listener at these addresses, with their own.
    fn holders(&self, port: u16, at: ListenAt) -> impl Iterator<Item = (ListenAt, Holder)> {
        let all = self.by_port.get(&port).into_iter().flatten();
        all.filter(move |(other, ..)| other.excludes(at)).map(|&(other, _, holder)| (other, holder))
    }

    /// Chooses a port that no program has at any address, so that the choice surprises no other
    /// program.
    fn choose(
        &self,
        addr: SocketAddr,
        random: &Mutex<Random>,
        may: impl Fn(SocketAddr) -> bool,
    ) -> Option<SocketAddr> {
        let (first, last) = DYNAMIC_PORTS.into_inner();
        let start = lock(random).below(u64::from(last - first) + 1);
        let start = first + u16::try_from(start).unwrap_or(0);
        let ports = (start..=last).chain(first..start);
        let free = ports.filter(|port| !self.by_port.contains_key(port));
        free.map(|port| SocketAddr::new(addr.ip(), port)).find(|at| may(*at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use heddle_base::Seed;

    fn random() -> Mutex<Random> {
        Mutex::new(Random::new(&Seed::from_u64(1)))
    }

    #[test]
    fn test_address_is_refused_while_it_is_reserved_or_listened_on() {
        let (names, random) = (Names::default(), random());
        let addr = |s: &str| s.parse::<SocketAddr>().unwrap();
        let reserve = |s| names.reserve(AppId(1), (addr(s), false), &random, |_| true);
        let listen = |app, at, id, by| names.listen(app, (at, false), id, by);
        let (one, number) = reserve("10.0.0.1:7000").unwrap();
        assert_eq!(one, addr("10.0.0.1:7000"));
        assert_eq!(reserve("10.0.0.1:7000"), Err(ReserveError::InUse));
        // A listener at all addresses and one at a single address may coexist, as in other systems.
        let (_, all) = reserve("0.0.0.0:7000").unwrap();
        assert_eq!(reserve("[::]:7000"), Err(ReserveError::InUse));
        let (two, id) = (AppId(2), ListenerId(5));
        assert!(!listen(two, one, id, None));
        assert!(!listen(two, one, id, Some(all)));
        assert!(listen(AppId(1), one, id, Some(number)));
        names.give_up(Holder::Reserved(number));
        assert!(listen(two, one, id, None));
        assert_eq!(reserve("10.0.0.1:7000"), Err(ReserveError::InUse), "a listener has it");
        names.give_up(Holder::Listener(id));
        reserve("10.0.0.1:7000").unwrap();
        names.give_up_all_of(AppId(1));
        assert!(lock(&names.0).by_port.is_empty());
    }

    #[test]
    fn test_wildcards_of_both_families_share_a_port_only_apart() {
        let (names, random) = (Names::default(), random());
        let at = |s: &str, v6_only| (s.parse::<SocketAddr>().unwrap(), v6_only);
        let reserve = |at| names.reserve(AppId(1), at, &random, |_| true);
        let (_, four) = reserve(at("0.0.0.0:7000", false)).unwrap();
        let (_, six) = reserve(at("[::]:7000", true)).unwrap();
        for other in [at("[::]:7000", false), at("[::]:7000", true), at("0.0.0.0:7000", true)] {
            assert_eq!(reserve(other), Err(ReserveError::InUse), "{other:?}");
        }
        reserve(at("[fd00::1]:7000", false)).unwrap();
        let (app, id) = (AppId(1), ListenerId(5));
        let any = at("[::]:7000", true);
        assert!(!names.listen(app, any, id, Some(four)), "the other family's");
        assert!(!names.listen(app, at("[::]:7000", false), id, Some(six)), "both families");
        assert!(names.listen(app, any, id, Some(six)));
        names.give_up(Holder::Reserved(four));
        assert!(!names.listen(app, at("[::]:7000", false), id, None));
        names.give_up(Holder::Reserved(six));
        assert!(names.listen(app, at("[::]:7000", false), id, None));
        assert_eq!(reserve(any), Err(ReserveError::InUse), "a listener has both");
    }

    #[test]
    fn test_chosen_ports_are_dynamic_free_and_allowed() {
        let (names, random) = (Names::default(), random());
        let any = (SocketAddr::from(([0; 4], 0)), false);
        let allowed = |at: SocketAddr| (60_000..60_010).contains(&at.port());
        let mut ports = Vec::new();
        names
            .reserve(AppId(1), (([10, 0, 0, 1], 60_003).into(), false), &random, |_| true)
            .unwrap();
        for _ in 0..9 {
            let (addr, _) = names.reserve(AppId(1), any, &random, allowed).unwrap();
            assert!(addr.ip().is_unspecified());
            ports.push(addr.port());
        }
        ports.sort_unstable();
        let want: Vec<u16> = (60_000..60_010).filter(|port| *port != 60_003).collect();
        assert_eq!(ports, want);
        assert_eq!(names.reserve(AppId(1), any, &random, allowed), Err(ReserveError::NoPort));
        let (one, _) = names.reserve(AppId(1), any, &random, |_| true).unwrap();
        assert!(DYNAMIC_PORTS.contains(&one.port()));
    }
}
