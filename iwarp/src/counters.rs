//! The counters of one QP.

heddle_base::counters! {
    /// Events and bytes that one QP has counted since it was made.
    pub struct QpCounters {
        /// FPDUs received and found good.
        rx_fpdus,
        /// ULP payload bytes placed.
        rx_bytes,
        /// Sends delivered.
        rx_sends,
        /// Read Requests accepted.
        rx_read_requests,
        /// Read Responses completed.
        rx_read_responses,
        /// Immediate Data delivered.
        rx_immediates,
        /// Atomic Requests accepted.
        rx_atomic_requests,
        /// Atomic operations carried out and answered.
        tx_atomic_responses,
        /// Atomic Responses completed.
        rx_atomic_responses,
        /// Stream bytes dropped after the end of the RDMAP stream.
        rx_dropped_bytes,
        /// Ready-to-receive messages (RFC 6581), our own or the peer's.
        rtr,
        /// FPDUs made.
        tx_fpdus,
        /// ULP payload bytes put into FPDUs.
        tx_bytes,
        /// FPDUs whose payload was small enough to be copied.
        tx_inlined,
        /// ULP payload bytes copied in FPDUs whose payload was small enough.
        tx_inlined_bytes,
        /// ULP payload bytes of Read Responses copied as they were when the FPDU was made.
        tx_snapshot_bytes,
        /// Times a Read Response had to wait for room to keep its payload.
        tx_snapshot_stalls,
        /// Times the next send had to wait for a fence or for ORD.
        tx_read_stalls,
        /// FPDUs whose CRC was wrong.
        err_crc,
        /// FPDUs whose markers say that they begin elsewhere.
        err_marker,
        /// ULPDUs too short for their DDP header.
        err_short,
        /// DDP segments of another DDP version.
        err_ddp_version,
        /// Segments of another RDMAP version.
        err_rdmap_version,
        /// Opcodes unknown, or not allowed where they came.
        err_opcode,
        /// Untagged segments for a queue that does not exist.
        err_queue,
        /// Untagged segments out of sequence (MSN).
        err_msn,
        /// Untagged messages without a buffer: no receive posted, or more Reads and atomic
        /// operations than agreed.
        err_no_buffer,
        /// Untagged segments at the wrong message offset.
        err_offset,
        /// Messages longer than their untagged buffer.
        err_too_long,
        /// Payloads that are not what their opcode says: Read Requests, Terminates, Immediate Data,
        /// atomic messages.
        err_malformed,
        /// Tagged segments, Read Requests and Atomic Requests with an invalid STag.
        err_stag,
        /// STags of another protection domain or QP.
        err_association,
        /// STags without the right that was needed.
        err_access,
        /// Accesses outside the bounds of a region.
        err_bounds,
        /// Tagged offsets that wrap.
        err_wrap,
        /// Read Responses that do not match the oldest outstanding Read.
        err_response,
        /// Atomic Requests whose address is not a multiple of 8.
        err_misaligned,
        /// STags the peer may not invalidate.
        err_invalidate,
        /// Local SGEs that failed their check, and STags that could not be registered, bound or
        /// invalidated as asked.
        err_local,
        /// STags registered, bound or invalidated by requests.
        local_binds,
        /// Terminates sent.
        tx_terminates,
        /// Terminates received.
        rx_terminates,
        /// Work requests flushed.
        flushed,
    }
}

/// The counters of one QP, laid out to save memory. The counters that every stream uses are here.
/// The other counters are used when a stream ends, or for the messages of RFC 7306, which few
/// streams carry; the QP allocates memory for them when it first needs one. The counters of every
/// FPDU are last, beside what the QP has after them.
#[derive(Clone, Debug, Default)]
#[repr(C)]
pub(crate) struct Tally {
    /// The other counters; the fields below are 0 in it.
    rare: Option<Box<QpCounters>>,
    pub(crate) rx_read_requests: u64,
    pub(crate) rx_read_responses: u64,
    pub(crate) tx_snapshot_bytes: u64,
    pub(crate) rx_sends: u64,
    pub(crate) tx_inlined: u64,
    pub(crate) tx_inlined_bytes: u64,
    pub(crate) tx_fpdus: u64,
    pub(crate) tx_bytes: u64,
    pub(crate) rx_fpdus: u64,
    pub(crate) rx_bytes: u64,
}

impl Tally {
    /// Where the counters begin that an FPDU of a Write changes.
    pub(crate) const HOT: usize = core::mem::offset_of!(Tally, tx_inlined);

    /// Returns the other counters, to count one of them; allocates them on the first call.
    #[inline]
    pub(crate) fn rare(&mut self) -> &mut QpCounters {
        self.rare.get_or_insert_default()
    }

    /// Returns all counters of the QP.
    pub(crate) fn all(&self) -> QpCounters {
        QpCounters {
            rx_fpdus: self.rx_fpdus,
            rx_bytes: self.rx_bytes,
            rx_sends: self.rx_sends,
            rx_read_requests: self.rx_read_requests,
            rx_read_responses: self.rx_read_responses,
            tx_fpdus: self.tx_fpdus,
            tx_bytes: self.tx_bytes,
            tx_inlined: self.tx_inlined,
            tx_inlined_bytes: self.tx_inlined_bytes,
            tx_snapshot_bytes: self.tx_snapshot_bytes,
            ..self.rare.as_deref().copied().unwrap_or_default()
        }
    }
}
