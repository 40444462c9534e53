//! Packets of RoCEv2, management datagrams, and the data that the RDMA IP CM service puts into
//! them: the parsers take any bytes, and a value that parses can be written, and parses as the same
//! value again.

use core::net::{IpAddr, Ipv4Addr};

use heddle_ib::cm::{Mad, Message, Rej, Req, SidrRep, SidrReq, SidrStatus};
use heddle_ib::ip_cm::{self, Ari, CONSUMER_LEN, Header, IpVersions, Service};
use heddle_ib::mad::{MAD_LEN, MadHeader};
use heddle_ib::roce::{UdPacket, UdRepr};

use crate::Seeds;

pub fn run(data: &[u8]) -> bool {
    let mut understood = false;
    if let Ok(ud) = UdPacket::parse(data) {
        let again = ud.repr.emit(ud.payload).expect("it was one packet");
        assert_eq!(UdPacket::parse(&again), Ok(ud));
        understood |= mad(ud.payload);
    }
    // Parse without the CRC, which a fuzzer does not guess.
    understood |= mad(data);
    let ari = Ari::parse(data);
    if let Ari::Service { suggested: Some(value), .. } = ari {
        assert!(!value.is_empty() && value.len() + 4 <= data.len());
    }
    understood
}

fn mad(payload: &[u8]) -> bool {
    let mad = match Mad::parse(payload) {
        Ok(mad) => mad,
        Err(e) => {
            if let Some(answer) = e.answer(payload) {
                // Two ends that do not understand each other must fall silent.
                assert!(Mad::parse(&answer).map_err(|e| e.answer(&answer)) != Err(Some(answer)));
                assert_eq!(MadHeader::parse(&answer).method, 0x81);
            }
            return false;
        }
    };
    assert_eq!(Mad::parse(&mad.emit()).as_ref(), Ok(&mad));
    match &mad.message {
        Message::Req(req) => request(req),
        Message::Rej(rej) => {
            assert!(rej.ari().len() <= Rej::ARI_LEN);
            let _ = Ari::parse(rej.ari());
        }
        _ => {}
    }
    true
}

fn request(req: &Req) {
    if let Some(service) = Service::of(req.service_id) {
        assert_eq!(service.id(), req.service_id);
    }
    for taken in [IpVersions::V4, IpVersions::BOTH] {
        match Header::parse(&req.private_data, taken) {
            Ok(header) => {
                let consumer = ip_cm::consumer(&req.private_data);
                let mut again = header.emit(&consumer).expect("of one version");
                // The sender writes reserved bits as zero.
                again[1] |= req.private_data[1] & 0xf;
                assert_eq!(again, req.private_data);
            }
            Err(fault) => {
                let (ari, len) = fault.ari();
                let Ari::Service { code, .. } = Ari::parse(&ari[..usize::from(len)]) else {
                    panic!("it is the service's")
                };
                assert_eq!(code, fault.code());
            }
        }
    }
}

pub fn seeds() -> Seeds {
    let (from, to) = (Ipv4Addr::new(10, 0, 0, 2), Ipv4Addr::new(10, 0, 0, 1));
    let header = Header { src: from.into(), src_port: 50000, dst: to.into() };
    let private_data = header.emit(&[7; CONSUMER_LEN]).expect("of one version");
    let mut blank = Req::parse(&[0; MAD_LEN - 24]);
    blank.service_id = Service::tcp(7174).id();
    blank.private_data = private_data;
    let sidr = SidrReq::parse(&[1; MAD_LEN - 24]);
    let rep = SidrRep::refusal(&sidr, SidrStatus::UNSUPPORTED);
    let messages = [
        ("req", Message::Req(Box::new(blank))),
        ("rej", Message::Rej(Box::new(Rej::parse(&[4; MAD_LEN - 24])))),
        ("sidr-rep", Message::SidrRep(Box::new(rep))),
        ("class-port-info", Message::GetClassPortInfo),
    ];
    let mut all = Seeds::new();
    for (name, message) in messages {
        let mad = Mad::new(5, message).emit();
        all.push((name.into(), mad.to_vec()));
        let (src, dst): (IpAddr, IpAddr) = (from.into(), to.into());
        let packet = UdRepr::gsi(src, dst, 0xc000).emit(&mad).expect("it is short");
        all.push((format!("packet-{name}"), packet));
    }
    all
}
