//! The life of an entry: the stack asks for it, confirms it, contests it and gives it up, because
//! of packets and because of time. The [parent](super) explains the rules.

use core::time::Duration;
use heddle_base::Instant;

use super::{LinkAddr, Neighbor, Neighbors};
use crate::wire::MacAddr;

/// The action due for a neighbor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::stack) enum Due {
    /// Ask for the host `who`, at this hardware address or everywhere on its link.
    Ask { who: LinkAddr, at: MacAddr },
    /// The neighbor never answered: its users fail.
    Failed(u32),
    /// The neighbor is in use but no longer answers. The table keeps its address.
    Unconfirmed(u32),
    /// The old station of the neighbor is silent: the neighbor is now at `at`, which must confirm
    /// this.
    Changed { neighbor: u32, who: LinkAddr, at: MacAddr },
}

/// The kind of packet from which we learn an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::stack) enum Source {
    /// An answer sent to us.
    Reply,
    /// A question for one of our addresses.
    Request,
    /// A packet meant for others.
    Overheard,
}

/// The effect of a packet on the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::stack) enum Learned {
    /// The table ignored the packet.
    Ignored,
    /// The table already had this address.
    Confirmed,
    /// The table has a new neighbor.
    New,
    /// A neighbor that users waited for is now known.
    Resolved(u32),
    /// The neighbor has another address now.
    Changed,
    /// The packet claims another address: ask the known station, which is given here.
    Contested(MacAddr),
    /// The packet claims another address too soon after such a claim was found wrong.
    Refused,
    /// The known station answers: the claim of the other was wrong.
    Defended(u32),
}

/// The state of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// The stack has asked so many times, without any answer.
    Incomplete(u8),
    /// The address is known.
    Reachable,
    /// The address is known, but the answer is old; the stack has asked again so many times.
    Probing(u8),
    /// The address is known, but another station claims it. The stack has asked the known station
    /// so many times.
    Contested { claim: MacAddr, tries: u8 },
    /// The neighbor never answered. The entry waits until its users leave.
    Failed,
}

impl Neighbors {
    /// Takes the claim of a packet that the host `who` is at `mac`.
    pub(in crate::stack) fn learn(
        &mut self,
        now: Instant,
        who: LinkAddr,
        mac: MacAddr,
        source: Source,
    ) -> Learned {
        let Some(&index) = self.by_addr.get(&who) else {
            if source != Source::Request {
                return Learned::Ignored;
            }
            let n = Neighbor::new(who, mac, State::Reachable, now, 0);
            return match self.insert(n) {
                Some(index) => {
                    self.timers.arm(index, now + LIFETIME);
                    Learned::New
                }
                None => Learned::Ignored,
            };
        };
        let Some(n) = self.slots.get_mut(index) else { return Learned::Ignored };
        let outcome = match n.state {
            State::Incomplete(_) if source == Source::Overheard => return Learned::Ignored,
            State::Incomplete(_) => {
                self.incomplete -= 1;
                Learned::Resolved(index)
            }
            State::Contested { .. } if n.mac == mac => {
                n.quiet_until = now + QUIET;
                Learned::Defended(index)
            }
            _ if n.mac == mac => Learned::Confirmed,
            // The stack asked everyone, because the known station did not answer.
            State::Probing(tries) if tries > TRIES && source == Source::Reply => Learned::Changed,
            State::Contested { .. } => return Learned::Ignored,
            _ if n.users == 0 => {
                self.remove(index);
                return Learned::Changed;
            }
            _ if now < n.quiet_until => return Learned::Refused,
            _ => {
                n.state = State::Contested { claim: mac, tries: 1 };
                let known = n.mac;
                self.timers.arm(index, now + CONTEST);
                return Learned::Contested(known);
            }
        };
        n.mac = mac;
        n.state = State::Reachable;
        n.fresh = now;
        if n.idle.is_in() {
            // The entry is the youngest again.
            self.idle.remove(&mut self.slots, index);
            self.idle.push(&mut self.slots, index);
        }
        self.timers.arm(index, now + LIFETIME);
        outcome
    }

    /// Has neighbor `index` asked at once, through which a peer has not acknowledged anything for a while
    /// (RFC 4861 section 7.3.1); or, if it has just answered, a second after that.
    pub(in crate::stack) fn suspect(&mut self, index: u32) {
        if let Some(n) = self.slots.get_mut(index)
            && n.state == State::Reachable
        {
            n.state = State::Probing(0);
            self.timers.arm(index, Instant::ZERO);
        }
    }

    /// Returns an action due at `now`. The caller repeats the call until it returns `None`.
    pub(in crate::stack) fn poll_due(&mut self, now: Instant) -> Option<Due> {
        while let Some(index) = self.timers.pop_due(now) {
            let Some(n) = self.slots.get_mut(index) else { continue };
            match n.state {
                State::Incomplete(tries) if n.users == 0 || tries >= TRIES => {
                    let failed = n.users > 0;
                    n.state = State::Failed;
                    self.incomplete -= 1;
                    self.by_addr.remove(&n.at);
                    if failed {
                        return Some(Due::Failed(index));
                    }
                    self.remove(index);
                }
                State::Incomplete(tries) => {
                    n.state = State::Incomplete(tries + 1);
                    let who = n.at;
                    self.timers.arm(index, now + RETRY);
                    return Some(Due::Ask { who, at: MacAddr::BROADCAST });
                }
                State::Reachable if now < n.fresh + LIFETIME => {
                    // A packet confirmed the address after the timer was armed.
                    let at = n.fresh + LIFETIME;
                    self.timers.arm(index, at);
                }
                _ if n.users == 0 => self.remove(index),
                State::Contested { claim, tries } if tries < CONTEST_TRIES => {
                    n.state = State::Contested { claim, tries: tries + 1 };
                    let due = Due::Ask { who: n.at, at: n.mac };
                    self.timers.arm(index, now + CONTEST);
                    return Some(due);
                }
                State::Contested { claim, .. } => {
                    n.mac = claim;
                    n.state = State::Probing(1);
                    let due = Due::Changed { neighbor: index, who: n.at, at: claim };
                    self.timers.arm(index, now + RETRY);
                    return Some(due);
                }
                // Ask first at the known address, then everywhere.
                State::Reachable => {
                    n.state = State::Probing(1);
                    let due = Due::Ask { who: n.at, at: n.mac };
                    self.timers.arm(index, now + RETRY);
                    return Some(due);
                }
                State::Probing(0) if now < n.fresh + RETRY => {
                    let at = n.fresh + RETRY;
                    self.timers.arm(index, at);
                }
                State::Probing(tries) if tries < 2 * TRIES => {
                    n.state = State::Probing(tries + 1);
                    let at = if tries < TRIES { n.mac } else { MacAddr::BROADCAST };
                    let due = Due::Ask { who: n.at, at };
                    self.timers.arm(index, now + RETRY);
                    return Some(due);
                }
                State::Probing(_) => {
                    n.state = State::Reachable;
                    n.fresh = now;
                    self.timers.arm(index, now + LIFETIME);
                    return Some(Due::Unconfirmed(index));
                }
                State::Failed => {}
            }
        }
        None
    }
}

/// The time between two requests.
pub(super) const RETRY: Duration = Duration::from_secs(1);
/// Requests before the stack gives up.
const TRIES: u8 = 3;
/// How long an answer stays valid.
pub(super) const LIFETIME: Duration = Duration::from_secs(60);
/// How long the known station has for each answer when another claims its address.
const CONTEST: Duration = Duration::from_millis(100);
/// How often the stack asks the known station then.
const CONTEST_TRIES: u8 = 2;
/// How long the stack tests no other claim after it refused one.
const QUIET: Duration = Duration::from_secs(1);
