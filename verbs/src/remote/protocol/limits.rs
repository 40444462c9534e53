//! [`DeviceLimits`] as a document.

use super::Limits;
use crate::limits::{Atomics, DeviceLimits};

impl From<&DeviceLimits> for Limits {
    fn from(l: &DeviceLimits) -> Limits {
        Limits {
            qps: l.max_qps,
            qp_wrs: l.max_qp_wrs,
            sges: l.max_sges,
            inline: l.max_inline,
            cqs: l.max_cqs,
            cqes: l.max_cqes,
            srqs: l.max_srqs,
            srq_wrs: l.max_srq_wrs,
            mrs: l.max_mrs,
            mrs_per_pd: l.max_mrs_per_pd,
            mws: l.max_mws,
            mws_per_pd: l.max_mws_per_pd,
            mr_size: l.max_mr_size,
            pds: l.max_pds,
            ird: l.max_ird,
            ord: l.max_ord,
            message: l.max_message,
            page_sizes: l.page_sizes,
            atomics: match l.atomics {
                Atomics::None => 0,
                Atomics::Rnic => 1,
                Atomics::Global => 2,
            },
        }
    }
}

impl From<&Limits> for DeviceLimits {
    /// Returns limits that no RNIC of this build exceeds, whatever the document says.
    fn from(l: &Limits) -> DeviceLimits {
        let said = DeviceLimits {
            max_qps: l.qps,
            max_qp_wrs: l.qp_wrs,
            max_sges: l.sges,
            max_sge_rd: DeviceLimits::MOST.max_sge_rd,
            max_inline: l.inline,
            max_cqs: l.cqs,
            max_cqes: l.cqes,
            max_srqs: l.srqs,
            max_srq_wrs: l.srq_wrs,
            max_mrs: l.mrs,
            max_mrs_per_pd: l.mrs_per_pd,
            max_mws: l.mws,
            max_mws_per_pd: l.mws_per_pd,
            max_mr_size: l.mr_size,
            max_pds: l.pds,
            max_ird: l.ird,
            max_ord: l.ord,
            max_message: l.message,
            page_sizes: l.page_sizes,
            atomics: match l.atomics {
                0 => Atomics::None,
                1 => Atomics::Rnic,
                _ => Atomics::Global,
            },
        };
        DeviceLimits { max_message: l.message, ..said.within(&DeviceLimits::MOST) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_device_limits_round_trip_through_protocol() {
        let limits = DeviceLimits { max_qps: 3, max_ird: 5, ..DeviceLimits::default() };
        assert_eq!(DeviceLimits::from(&Limits::from(&limits)), limits);
        let lies = Limits { qps: u32::MAX, sges: u16::MAX, ..Limits::from(&limits) };
        let read = DeviceLimits::from(&lies);
        assert_eq!(read.max_qps, DeviceLimits::MOST.max_qps);
        assert_eq!(read.max_sges, DeviceLimits::MOST.max_sges);
    }
}
