//! Memory regions: the memory that a peer and the local queue pairs may use, with which rights, and
//! how an engine reaches it.
//!
//! [`MrTable`] has the STags of an RNIC, and checks each use of one. A check that passes returns a
//! [`MemRange`], which only this crate can make, and [`Memory`] takes nothing else: an engine
//! cannot touch memory that the table has not granted. [`Pins`] count the references that an engine
//! keeps to memory after a check, so that the owner of the memory can wait for their end.
//!
//! The crate knows no protocol. "STag" is iWARP's term (RFC 5040 section 1.1); InfiniBand calls the
//! same 32 bits an L_Key or R_Key, with 24 bits of index and 8 of key as well.
//!
//! # The table
//! The table serves all threads. Every DDP segment passes [`MrTable::check`], so it takes no lock:
//! a slot is a cache line of atomics guarded by a sequence number. A reader that sees the number
//! change during its read treats the slot as empty. The reader need not retry, because a slot
//! changes only when a registration appears (whose STag no peer can know yet) or ends (whose STag
//! is no longer valid).
//!
//! # Kinds of STags
//! A *region* is registered memory. Two other kinds of STag have no memory of their own: a *fast
//! registration* and a *window*. Their owner gives them a part of a region over and over, each time
//! with another key. A request on the send queue makes a fast registration. The owner binds a
//! window of type 1, for all QPs of a PD; a request binds a window of type 2, for one QP. Fast
//! registrations and windows keep the slot of their region and its sequence number, and are valid
//! while the region has that number. So the end of a region also ends all STags that derive from
//! it, at once and without a search. An access through a derived STag counts as a reference to the
//! region. `table::derive` has the rules. A fast registration may name pages that are not contiguous;
//! a check returns one contiguous stretch of them at a time.
//!
//! # Guarantees of unregistering
//! After [`MrTable::deregister`] or [`MrTable::invalidate`] has returned, no check that starts
//! later finds the region. A worker that obtained its [`MemRange`] *before* may still be copying,
//! and FPDUs that the peer's TCP has not acknowledged refer to the memory until they are
//! acknowledged. A caller that reuses or unmaps the memory must first let every worker pass a
//! quiescent point (return from its poll) and then wait until no worker's [`Pins`] count a
//! reference to the memory. The same holds for a region that the peer invalidated.
//! [`MrTable::retire`] and [`MrTable::release`] keep the slot taken meanwhile, so that the pins
//! count references to the old region and not to a new one.
//!
//! # STags
//! An STag has 24 bits of index and 8 of key. The low bits of the index name the slot, hidden by a
//! secret. All other bits are random for each registration, and the table hands out slots in random
//! order, so STags are sparse and hard to guess (RFC 5042 section 6.2.1; randomness is no
//! substitute for rights). A slot never gets the same index twice in a row. 0 is never an STag. The
//! local and the remote key of a region are the same. The table chooses the key of a region, and
//! counts up the key of a window of type 1 with each binding. The consumer chooses the key of a
//! fast registration or of a window of type 2.
#![forbid(unsafe_code)]

mod memory;
mod pins;
mod table;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use memory::{MemRange, Memory};
pub use pins::Pins;
pub use table::{CheckedRest, Kind, MAX_SLOTS, MrAttr, MrTable};
