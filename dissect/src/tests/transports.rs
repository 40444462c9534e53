//! Exchanges that keep the rules: the decoder shows them, and gives no verdict.

use heddle_rpcrdma::chunk::{ReadList, WriteChunk, ZeroPosition};
use heddle_rpcrdma::private_data::PrivateData;
use heddle_rpcrdma::property::Properties;
use heddle_rpcrdma::v1::{self, Chunks};
use heddle_rpcrdma::v2::{self, PropertySet};
use heddle_rpcrdma::{Handle, ReadSegment};

use super::*;
use crate::testing::{Wire, call, reply};

#[test]
fn test_decoder_shows_nfs_read_over_version_1() {
    for (crc, markers) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut w = Wire::new(crc, markers);
        with_chunks([0, 5, 0], 4, |c| w.v1(0, 7, 32, v1::Body::Msg(c), &call(7, 6)));
        w.write(1, 5, at(5), &[1; 900]);
        returned(5, 900, |writes| {
            let chunks = Chunks { writes, ..Chunks::NONE };
            w.v1(1, 7, 16, v1::Body::Msg(chunks), &reply(7, 0));
        });
        let (items, summary) = w.decode();
        let mpa = |name| {
            let crc = if crc { " crc" } else { "" };
            let markers = if markers { " markers" } else { "" };
            format!("MPA {name} revision 2{crc}{markers} ird 16 ord 16")
        };
        assert_eq!(
            lines(&items),
            [
                &format!("> {}", mpa("Request")),
                &format!("< {}", mpa("Reply")),
                "> RDMA_MSG 0x00000007 credits 32  call NFS3 READ  write[1000 0x00000005@0x5000]",
                "< Write 900 to 0x00000005@0x5000  write chunk 0+0 of 0x00000007",
                "< RDMA_MSG 0x00000007 credits 16  reply NFS3 READ SUCCESS status 0  \
             write[900 0x00000005@0x5000]",
            ]
        );
        assert_eq!((summary.frames, summary.connections, summary.verdicts), (7, 1, 0));
    }
}

/// A call and a reply that are not in Sends: the decoder shows their headers where they pass.
#[test]
fn test_decoder_shows_long_call_and_long_reply_of_version_1() {
    let mut w = Wire::new(true, false);
    with_chunks([3, 0, 4], 0, |c| w.v1(0, 9, 1, v1::Body::NoMsg(c), &[]));
    w.read(1, 3, at(3), 1000);
    let mut long = call(9, 16);
    long.resize(1000, 0);
    w.respond(0, &long);
    w.write(1, 4, at(4), &reply(9, 2));
    let segments = [segment(4)];
    let reply = WriteChunk::new(&segments).unwrap().filled(28);
    w.v1(1, 9, 1, v1::Body::NoMsg(Chunks { reply: Some(reply), ..Chunks::NONE }), &[]);
    let (items, summary) = w.decode();
    assert_eq!(summary.verdicts, 0, "{:#?}", lines(&items));
    assert_eq!(
        lines(&items)[2..],
        [
            "> RDMA_NOMSG 0x00000009 credits 1  read[0: 1000 0x00000003@0x3000]  \
         reply[1000 0x00000004@0x4000]",
            "< ReadRequest 1000 from 0x00000003@0x3000 to 0x00007777@0x0  call chunk+0 of 0x00000009",
            "> ReadResponse 1000 to 0x00007777@0x0  call chunk+0 of 0x00000009  call NFS3 READDIR",
            "< Write 28 to 0x00000004@0x4000  reply chunk+0 of 0x00000009  \
         reply NFS3 READDIR SUCCESS status 2",
            "< RDMA_NOMSG 0x00000009 credits 1  reply[28 0x00000004@0x4000]",
        ]
    );
}

#[test]
fn test_decoder_shows_version_2_call_from_properties_to_invalidating_reply() {
    let mut w = Wire::new(true, true);
    let ours = Properties { send_size: 8192, ..Properties::DEFAULT }.encoded();
    let ours = ours.properties();
    let props = PropertySet::new(&ours).unwrap();
    w.v2(0, None, (1, 8), v2::Body::ConnProp { last: true, props }, &[]);
    w.v2(1, None, (0, 8), v2::Body::Grant, &[]);
    with_chunks([0, 5, 0], 4, |chunks| {
        let body = v2::Body::CallInline { invalidate: Handle(5), chunks };
        w.v2(0, None, (2, 9), body, &call(2, 6));
    });
    w.write(1, 5, at(5), &[1; 1000]);
    returned(5, 1000, |writes| {
        w.v2(1, Some(5), (2, 10), v2::Body::ReplyInline { writes }, &reply(2, 0));
    });
    let (items, summary) = w.decode();
    assert_eq!(summary.verdicts, 0, "{:#?}", lines(&items));
    assert_eq!(
        lines(&items)[2..],
        [
            "> RDMA2_CONNPROP_FINAL 0x00000001 credits 8 send-size=8192 receive-size=4096 \
         segment-size=1048576 segment-count=16 reverse=0",
            "< RDMA2_GRANT 0x00000000 credits 8",
            "> RDMA2_CALL_INLINE 0x00000002 credits 9  call NFS3 READ  write[1000 0x00000005@0x5000] \
         may-invalidate 0x00000005",
            "< Write 1000 to 0x00000005@0x5000  write chunk 0+0 of 0x00000002",
            "< RDMA2_REPLY_INLINE 0x00000002 credits 10  reply NFS3 READ SUCCESS status 0  \
         write[1000 0x00000005@0x5000] invalidates 0x00000005",
        ]
    );
}

#[test]
fn test_decoder_shows_version_2_calls_in_parts_in_chunks_and_refused() {
    let mut w = Wire::new(false, false);
    let credits = |n| (n, 20);
    w.v2(1, None, credits(0), v2::Body::Grant, &[]);
    let stream = [call(3, 7), vec![0; 60]].concat();
    w.v2(0, None, credits(3), v2::Body::CallMiddle { remaining: 20 }, &stream[..80]);
    let none = Chunks::NONE;
    let body = v2::Body::CallInline { invalidate: Handle(0), chunks: none };
    w.v2(0, None, credits(3), body, &stream[80..]);
    let (first, last) = (reply(3, 70), [0; 8]);
    w.v2(1, None, credits(3), v2::Body::ReplyMiddle { remaining: 8 }, &first);
    w.v2(1, None, credits(3), v2::Body::ReplyInline { writes: none.writes }, &last);
    // A call in a chunk, which the server refuses.
    let body = [ReadSegment { position: 0, target: segment(6) }];
    let list = ReadList::new(&body, ZeroPosition::Only).unwrap();
    let body = v2::Body::CallExternal { invalidate: Handle(0), call: list, chunks: none };
    w.v2(0, None, credits(4), body, &[]);
    w.read(1, 6, at(6), 1000);
    w.respond(0, &[call(4, 8), vec![0; 960]].concat());
    w.v2(1, None, credits(4), v2::Body::Error(v2::Refusal::Segments { max: 2 }), &[]);
    let (items, summary) = w.decode();
    assert_eq!(summary.verdicts, 0, "{:#?}", lines(&items));
    assert_eq!(
        lines(&items)[3..],
        [
            "> RDMA2_CALL_MIDDLE 0x00000003 credits 20 remaining 20  call NFS3 WRITE",
            "> RDMA2_CALL_INLINE 0x00000003 credits 20",
            "< RDMA2_REPLY_MIDDLE 0x00000003 credits 20 remaining 8  \
         reply NFS3 WRITE SUCCESS status 70",
            "< RDMA2_REPLY_INLINE 0x00000003 credits 20",
            "> RDMA2_CALL_EXTERNAL 0x00000004 credits 20  call[1000 0x00000006@0x6000]",
            "< ReadRequest 1000 from 0x00000006@0x6000 to 0x00007777@0x0  call chunk+0 of 0x00000004",
            "> ReadResponse 1000 to 0x00007777@0x0  call chunk+0 of 0x00000004  call NFS3 CREATE",
            "< RDMA2_ERROR 0x00000004 credits 20 RDMA2_ERR_SEGMENTS, at most 2",
        ]
    );
}

/// A client that begins with version 2 at a server that knows only version 1.
#[test]
fn test_decoder_follows_client_that_falls_back_to_version_1() {
    let mut w = Wire::new(true, false);
    let body = v2::Body::CallInline { invalidate: Handle(0), chunks: Chunks::NONE };
    w.v2(0, None, (1, 4), body, &call(1, 0));
    let range = v1::Refusal::Versions { low: 1, high: 1 };
    w.v1(1, 1, 4, v1::Body::Error(range), &[]);
    w.v1(0, 1, 4, v1::Body::Msg(Chunks::NONE), &call(1, 0));
    w.v1(1, 1, 4, v1::Body::Msg(Chunks::NONE), &reply(1, 0)[..24]);
    let (items, summary) = w.decode();
    assert_eq!(summary.verdicts, 0, "{:#?}", lines(&items));
    assert_eq!(lines(&items)[3], "< RDMA_ERROR 0x00000001 credits 4 ERR_VERS 1..1");
    assert_eq!(lines(&items)[5], "< RDMA_MSG 0x00000001 credits 4  reply NFS3 NULL SUCCESS");
}

/// On another port the decoder recognizes the protocol by the first Send or the private data.
#[test]
fn test_decoder_recognizes_transport_by_first_message_or_private_data() {
    let mut w = Wire::to(999, false, false, [&[], &[]]);
    w.send(0, None, &[]);
    w.v1(0, 7, 32, v1::Body::Msg(Chunks::NONE), &call(7, 0));
    let (items, _) = w.decode();
    assert_eq!(
        lines(&items)[2..],
        ["> Send 0", "> RDMA_MSG 0x00000007 credits 32  call NFS3 NULL"]
    );

    let mut w = Wire::to(999, false, false, [&[], &[]]);
    w.send(0, None, b"hello");
    w.v1(0, 7, 32, v1::Body::Msg(Chunks::NONE), &call(7, 0));
    let (items, summary) = w.decode();
    assert_eq!((lines(&items)[3].as_str(), summary.verdicts), ("> Send 68", 0));

    let told = PrivateData::new(true, 4096, 8192).unwrap().emit();
    let mut w = Wire::to(999, false, false, [&told, &[]]);
    w.send(0, None, b"hello");
    let (items, _) = w.decode();
    assert!(lines(&items)[0].ends_with("ord 16 rpcrdma send 4096 receive 8192 invalidate"));
    assert_eq!(verdicts(&items), [Rule::Header]);
}
