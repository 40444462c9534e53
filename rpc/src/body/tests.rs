use super::*;

#[test]
fn test_body_is_written_and_read_as_xdr() {
    let mut body = Body::new();
    body.u32(7).unwrap().opaque(b"abcde").unwrap().u64(9).unwrap();
    let want =
        [0, 0, 0, 7, 0, 0, 0, 5, b'a', b'b', b'c', b'd', b'e', 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9];
    assert_eq!((body.bytes(), body.len()), (&want[..], 24));
    let mut r = body.reader();
    assert_eq!(r.u32(), Ok(7));
    assert_eq!(r.opaque(5).unwrap().to_vec(), b"abcde");
    assert_eq!(r.finish().unwrap_err().fault, xdr::Fault::Trailing { left: 8 });
    assert_eq!((r.u64(), r.finish()), (Ok(9), Ok(())));
}

#[test]
fn test_opaque_data_longer_than_allowed_or_cut_off_is_refused() {
    let mut body = Body::new();
    body.opaque(b"abcde").unwrap();
    let fault = |body: &Body, max| body.reader().opaque(max).unwrap_err().fault;
    assert_eq!(fault(&body, 4), xdr::Fault::Length { len: 5, max: 4 });
    let cut = Body::of(body.bytes()[..8].to_vec()).unwrap();
    assert_eq!(fault(&cut, 5), xdr::Fault::End { need: 5, have: 4 });
}
