use crate::bytes::{array, be16, be24, be32, be64, put, put24};
use crate::mad::Data;
use crate::types::{Qpn, ServiceId};

/// SIDR REQ: asks for the queue pair that serves datagrams for a Service ID.
///
/// ```text
///    0  request id 32
///    4  P_Key 16 │ reserved 16
///    8  service id 64
///   16  private data, 216 bytes
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SidrReq {
    /// The asking side's name of the request.
    pub request_id: u32,
    /// P_Key of the partition.
    pub p_key: u16,
    /// The service that the asking side wants.
    pub service_id: ServiceId,
    /// The application's private data.
    pub private_data: [u8; SidrReq::PRIVATE_LEN],
}

impl SidrReq {
    /// Bytes of private data.
    pub const PRIVATE_LEN: usize = 216;

    /// Reads a message, which may have any value.
    pub fn parse(b: &Data) -> SidrReq {
        SidrReq {
            request_id: be32(b, 0),
            p_key: be16(b, 4),
            service_id: ServiceId(be64(b, 8)),
            private_data: array(b, 16),
        }
    }

    pub(super) fn emit(&self, b: &mut Data) {
        put(b, 0, &self.request_id.to_be_bytes());
        put(b, 4, &self.p_key.to_be_bytes());
        put(b, 8, &self.service_id.0.to_be_bytes());
        put(b, 16, &self.private_data);
    }
}

/// The result that a SIDR REP reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SidrStatus(pub u8);

impl SidrStatus {
    /// The REP names a queue pair.
    pub const VALID: SidrStatus = SidrStatus(0);
    /// No application serves the Service ID.
    pub const UNSUPPORTED: SidrStatus = SidrStatus(1);
    /// The service refuses.
    pub const REJECTED: SidrStatus = SidrStatus(2);
    /// No queue pair is left.
    pub const NO_QP: SidrStatus = SidrStatus(3);
}

/// SIDR REP: answers a SIDR REQ.
///
/// ```text
///    0  request id 32
///    4  status 8 │ additional information length 8 │ vendor id, high 16
///    8  QPN 24 │ vendor id, low 8
///   12  service id 64
///   20  Q_Key 32
///   24  additional information, 72 bytes
///   96  private data, 136 bytes
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SidrRep {
    /// The asking side's name of the request.
    pub request_id: u32,
    /// The result of the request.
    pub status: SidrStatus,
    /// Valid bytes of the additional information.
    pub info_len: u8,
    /// Manufacturer of the answering CM, 24 bits.
    pub vendor_id: u32,
    /// Number of the queue pair that serves the Service ID.
    pub qpn: Qpn,
    /// The service that the asking side wanted.
    pub service_id: ServiceId,
    /// Q_Key of that queue pair.
    pub q_key: u32,
    /// Additional information.
    pub info: [u8; SidrRep::INFO_LEN],
    /// The application's private data.
    pub private_data: [u8; SidrRep::PRIVATE_LEN],
}

impl SidrRep {
    /// Size of the field of additional information, in bytes.
    pub const INFO_LEN: usize = 72;
    /// Bytes of private data.
    pub const PRIVATE_LEN: usize = 136;

    /// Makes an answer without a queue pair.
    pub const fn refusal(request: &SidrReq, status: SidrStatus) -> SidrRep {
        SidrRep {
            request_id: request.request_id,
            status,
            info_len: 0,
            vendor_id: 0,
            qpn: Qpn::new(0),
            service_id: request.service_id,
            q_key: 0,
            info: [0; SidrRep::INFO_LEN],
            private_data: [0; SidrRep::PRIVATE_LEN],
        }
    }

    /// Reads a message, which may have any value.
    pub fn parse(b: &Data) -> SidrRep {
        SidrRep {
            request_id: be32(b, 0),
            status: SidrStatus(b[4]),
            info_len: b[5],
            vendor_id: u32::from(be16(b, 6)) << 8 | u32::from(b[11]),
            qpn: Qpn::new(be24(b, 8)),
            service_id: ServiceId(be64(b, 12)),
            q_key: be32(b, 20),
            info: array(b, 24),
            private_data: array(b, 96),
        }
    }

    pub(super) fn emit(&self, b: &mut Data) {
        let [_, high, middle, low] = self.vendor_id.to_be_bytes();
        put(b, 0, &self.request_id.to_be_bytes());
        b[4] = self.status.0;
        b[5] = self.info_len;
        put(b, 6, &[high, middle]);
        put24(b, 8, self.qpn.get());
        b[11] = low;
        put(b, 12, &self.service_id.0.to_be_bytes());
        put(b, 20, &self.q_key.to_be_bytes());
        put(b, 24, &self.info);
        put(b, 96, &self.private_data);
    }
}
