//! Layout of the objects in shared memory, in words of 64 bits.
//!
//! A line is 8 words, 64 bytes. Words of the two sides never share a line.
//!
//! ```text
//! queue pair   line 0  constants, for a process that attaches (written before it is handed out)
//!              line 1  send queue: tail (blocks), posted (requests)           application writes
//!              line 2  receive queue: the same                                application writes
//!              line 3  heads (blocks) and retired (requests) of both          worker writes
//!              line 4  state, and how many posted requests it took in all     worker writes
//!              line 5… blocks of the send queue, then of the receive queue    application writes
//!
//! shared       line 0  constants
//! receive      line 1  tail (requests)                                        application writes
//! queue        line 2  limit that raises an event                             both, atomically
//!              line 3  head (requests), limit events                          workers, atomically
//!              line 4… slots for an entry, with as many blocks each           application writes
//!
//! completion   line 0  constants, and where its completions lie               application writes
//! queue        line 1  armed                                                  both, atomically
//!              line 2  overflowed                                             worker writes
//!              then for each worker: a line with the tail, how often it has moved, from which
//!              completion on, and what is staged (worker); a line with the head (application)
//!
//! its          a block of its own, with as many for each worker; a resize
//! completions  gives the queue another block                                  worker writes
//!
//! entry of a   word 0  opcode:8 flags:8 sges:8 blocks:8 inline bytes:16
//! send queue           blocks of the entry before:8 zero:8
//!              word 1  wr_id
//!              word 2  remote STag:32 STag to invalidate:32
//!              word 3  remote tagged offset
//!              in operations on STags: word 2  STag:32 rights:8 zero:24
//!                                      word 3  its first tagged offset
//!              then, in operations that have them: word 4 immediate data, or the operand to add or
//!              to compare with; word 5 the operand to swap in; words 6 and 7 masks of the two (a
//!              carry out of a bit of the mask of the addend is dropped)
//!              then SGEs of two words (tagged offset; STag:32 length:32), or inline bytes, the
//!              last word filled up with zeros; the worker ignores the rest of the entry's blocks
//!
//! entry of a   word 0  as above (opcode 0)
//! recv. queue  word 1  wr_id
//!              then SGEs
//!
//! completion   word 0  wr_id
//!              word 1  opcode:8 status:8 flags:8 zero:8 queue pair:32
//!              word 2  bytes:32, invalidated STag or Terminate code:32
//!              word 3  immediate data
//! ```

/// Words of a line.
pub const LINE: usize = 8;
/// Words of a block, the unit of the send and the receive queue.
pub const BLOCK: usize = 8;
/// Words of a completion.
pub const CQE: usize = 4;

/// First word of each line of a queue pair.
pub mod qp {
    use super::LINE;

    pub const QPN: usize = 0;
    pub const PD: usize = 1;
    /// Depths in requests: send queue in the lower half, receive queue in the upper.
    pub const DEPTHS: usize = 2;
    /// Sizes in blocks, in the same halves.
    pub const BLOCKS: usize = 3;
    /// Most SGEs of a send (lower 16 bits) and a receive request, most inline bytes (bits 32..48).
    pub const LIMITS: usize = 4;
    pub const BELL: usize = 5;
    /// 1 if the queue pair takes its receives from a shared queue and does not use its own; else 0.
    pub const SHARED: usize = 6;

    pub const SQ_TAIL: usize = LINE;
    pub const SQ_POSTED: usize = LINE + 1;
    pub const RQ_TAIL: usize = 2 * LINE;
    pub const RQ_POSTED: usize = 2 * LINE + 1;

    pub const SQ_HEAD: usize = 3 * LINE;
    pub const SQ_RETIRED: usize = 3 * LINE + 1;
    pub const RQ_HEAD: usize = 3 * LINE + 2;
    pub const RQ_RETIRED: usize = 3 * LINE + 3;

    pub const STATE: usize = 4 * LINE;
    pub const SQ_FINAL: usize = 4 * LINE + 1;
    pub const RQ_FINAL: usize = 4 * LINE + 2;
    /// Phase of the connection while a worker runs the queue pair.
    pub const PHASE: usize = 4 * LINE + 3;

    pub const ENTRIES: usize = 5 * LINE;
}

/// States of a queue pair, as [`qp::STATE`] shows them: the state in the lower 8 bits, and for
/// [`state::RUNNING`] the worker above them.
pub mod state {
    /// No worker runs the queue pair yet.
    pub const IDLE: u64 = 0;
    /// A worker takes the posted requests.
    pub const RUNNING: u64 = 1;
    /// The worker is taking the last requests; this state is brief.
    pub const ENDING: u64 = 2;
    /// The worker takes no more: it has not seen requests beyond `SQ_FINAL` and `RQ_FINAL`.
    pub const DEAD: u64 = 3;
}

/// Phases of a queue pair that a worker runs ([`qp::PHASE`]).
pub mod phase {
    /// The worker carries out requests.
    pub const RTS: u64 = 0;
    /// The application has closed the connection: the worker carries out earlier posts.
    pub const CLOSING: u64 = 1;
    /// This side has found an error and is sending a Terminate.
    pub const TERMINATE: u64 = 2;
    /// The stream is over.
    pub const ERROR: u64 = 3;
}

/// Words of a shared receive queue.
pub mod srq {
    use super::LINE;

    pub const PD: usize = 0;
    pub const DEPTH: usize = 1;
    pub const MAX_SGE: usize = 2;
    pub const NUMBER: usize = 3;

    pub const TAIL: usize = LINE;
    pub const LIMIT: usize = 2 * LINE;
    pub const HEAD: usize = 3 * LINE;
    pub const EVENTS: usize = 3 * LINE + 1;

    pub const ENTRIES: usize = 4 * LINE;
}

/// Words of a completion queue.
pub mod cq {
    use super::LINE;

    pub const NUMBER: usize = 0;
    pub const RINGS: usize = 1;
    /// Completions of one ring, a power of two.
    pub const SIZE: usize = 2;

    /// Bytes from the start of the area to the queue's completions.
    pub const PLACE: usize = 3;
    /// Number of times that the completions got another place.
    pub const GENERATION: usize = 4;

    pub const ARMED: usize = LINE;
    pub const OVERFLOWED: usize = 2 * LINE;
    /// First word of the indices.
    pub const FIRST: usize = 3 * LINE;

    /// The words from here to `HEAD` are offsets into a worker's indices.
    pub const TAIL: usize = 0;
    /// The generation of the place that the worker writes to; `MOVED_AT` is the index of its first
    /// completion there.
    pub const MOVED: usize = 1;
    pub const MOVED_AT: usize = 2;
    /// The tail as it will be once the application may see the staged completions, which belong to
    /// one queue pair. Before that, the worker retires their requests: `SQ_RETIRED` and
    /// `RQ_RETIRED` say up to which request of its send and receive queue (modulo 2^32). With these
    /// words, an application whose RNIC is killed in between knows which requests are complete.
    pub const STAGED: usize = 3;
    pub const SQ_RETIRED: usize = 4;
    pub const RQ_RETIRED: usize = 5;
    pub const HEAD: usize = LINE;
    /// Number of words of a worker's indices.
    pub const RING: usize = 2 * LINE;
}

/// Completions that a completion queue is armed for ([`cq::ARMED`]).
pub mod armed {
    /// No completion.
    pub const NO: u64 = 0;
    /// The next completion that is solicited or has failed.
    pub const SOLICITED: u64 = 1;
    /// The next completion.
    pub const NEXT: u64 = 2;
}

/// Opcodes of send queue entries. No number ever gets a second meaning.
pub mod opcode {
    pub const RECV: u64 = 0;
    pub const SEND: u64 = 1;
    pub const SEND_INVALIDATE: u64 = 2;
    pub const WRITE: u64 = 3;
    pub const READ: u64 = 4;
    /// RFC 7306: Immediate Data, a Write followed by Immediate Data, and the atomic operations.
    pub const IMMEDIATE: u64 = 5;
    pub const WRITE_IMMEDIATE: u64 = 6;
    pub const FETCH_ADD: u64 = 7;
    pub const COMPARE_SWAP: u64 = 8;
    /// Operations on STags of this side. There is no operation 9.
    pub const FAST_REGISTER: u64 = 10;
    pub const LOCAL_INVALIDATE: u64 = 11;
    pub const BIND_WINDOW: u64 = 12;
}

/// Flags of send queue entries.
pub mod flag {
    /// A request that succeeds makes a completion.
    pub const SIGNALED: u64 = 1;
    /// The request starts only after earlier Reads are done.
    pub const FENCE: u64 = 2;
    /// The request asks the peer to raise an event.
    pub const SOLICITED: u64 = 4;
    /// The entry contains the data.
    pub const INLINE: u64 = 8;
}

/// Returns the words of an entry before its SGEs or inline bytes.
pub const fn head_words(op: u64) -> usize {
    match op {
        opcode::RECV => 2,
        opcode::SEND | opcode::SEND_INVALIDATE | opcode::WRITE | opcode::READ => 4,
        opcode::FAST_REGISTER | opcode::LOCAL_INVALIDATE | opcode::BIND_WINDOW => 4,
        _ => 8,
    }
}

/// Returns the blocks of an entry with so many words of SGEs or inline bytes.
pub const fn blocks(op: u64, data_words: usize) -> usize {
    (head_words(op) + data_words).div_ceil(BLOCK)
}

const _: () = {
    assert!(LINE * size_of::<u64>() == 64 && BLOCK == LINE && LINE.is_multiple_of(CQE));
    // A Write of up to 32 inline bytes, or of two pieces, is one line.
    assert!(blocks(opcode::WRITE, 4) == 1 && blocks(opcode::WRITE, 5) == 2);
    assert!(blocks(opcode::RECV, 6) == 1);
    // The longest entry: 512 inline bytes after the head of an operation with masks.
    assert!(blocks(opcode::WRITE_IMMEDIATE, 64) == 9);
    assert!(qp::ENTRIES.is_multiple_of(LINE) && cq::FIRST.is_multiple_of(LINE));
};
