//! The rings that requests, their pieces and their inline octets lie in.

use crate::qp::fifo::Fifo;

/// It takes more memory when it is full and not before; what is in it stays in order, wherever the ring
/// begins.
#[test]
fn test_ring_grows_when_it_is_full_and_not_before() {
    for start in 0..20 {
        let mut ring = Fifo::<u8>::new();
        ring.extend(&[0]);
        let capacity = ring.capacity();
        for _ in 0..start {
            ring.extend(&[0]);
            ring.pop();
        }
        ring.pop();
        let first = ring.head();
        let values: Vec<u8> = (0..=u8::MAX).take(capacity).collect();
        let (a, b) = values.split_at(capacity / 2);
        ring.extend(a);
        ring.extend(b);
        assert_eq!((ring.capacity(), ring.len()), (capacity, capacity));
        assert_eq!(ring.run(first, capacity).concat(), values);
        ring.extend(&[9]);
        assert_eq!((ring.capacity(), ring.len()), (2 * capacity, capacity + 1));
        assert_eq!(ring.run(first, capacity + 1).concat(), [&values[..], &[9]].concat());
    }
}
