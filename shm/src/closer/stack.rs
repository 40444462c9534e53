//! A stack to which any thread pushes without waiting for another.
//!
//! A producer swings the head to its node by compare-and-swap; the consumer takes all nodes by one
//! swap. No thread pops single nodes, so a node that is freed and allocated anew does no harm
//! (ABA).

use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The stack; the consumer gets the values oldest first.
#[derive(Debug)]
pub(super) struct Stack<T> {
    head: AtomicPtr<Node<T>>,
    _owns: PhantomData<T>,
}

#[derive(Debug)]
struct Node<T> {
    value: T,
    next: *mut Node<T>,
}

// SAFETY: the stack owns its values and gives each to one thread, so threads may share the stack
// where they may send the values.
unsafe impl<T: Send> Send for Stack<T> {}
// SAFETY: as above; no thread has a reference to a value while the value is inside.
unsafe impl<T: Send> Sync for Stack<T> {}

impl<T> Stack<T> {
    pub(super) const fn new() -> Stack<T> {
        Stack { head: AtomicPtr::new(ptr::null_mut()), _owns: PhantomData }
    }

    /// Adds a value. The function allocates a node and waits for no thread.
    pub(super) fn push(&self, value: T) {
        let node = Box::into_raw(Box::new(Node { value, next: ptr::null_mut() }));
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            // SAFETY: the node is ours until the exchange below publishes it.
            unsafe { (*node).next = head };
            // Release: a thread that takes the node sees the node's contents.
            match self.head.compare_exchange_weak(head, node, Ordering::Release, Ordering::Relaxed)
            {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.head.load(Ordering::Relaxed).is_null()
    }

    /// Takes all values pushed so far, the oldest first.
    pub(super) fn take_all(&self) -> Vec<T> {
        // Acquire: pairs with the exchange in `push`.
        let mut node = self.head.swap(ptr::null_mut(), Ordering::Acquire);
        let mut all = Vec::new();
        while !node.is_null() {
            // SAFETY: `Box::into_raw` made the node; the swap above took it, and all nodes after
            // it, out of every other thread's reach.
            let Node { value, next } = *unsafe { Box::from_raw(node) };
            all.push(value);
            node = next;
        }
        all.reverse();
        all
    }
}

impl<T> Drop for Stack<T> {
    fn drop(&mut self) {
        drop(self.take_all());
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn test_stack_yields_each_value_once_and_in_order_of_its_producer() {
        // Miri, which interprets, is a thousand times slower.
        const EACH: usize = if cfg!(miri) { 30 } else { 10_000 };
        let stack = Stack::new();
        let mut taken: Vec<Vec<usize>> = vec![Vec::new(); 4];
        std::thread::scope(|scope| {
            let producers: Vec<_> = (0..4)
                .map(|p| {
                    let stack = &stack;
                    scope.spawn(move || (0..EACH).for_each(|n| stack.push((p, Box::new(n)))))
                })
                .collect();
            while taken.iter().map(Vec::len).sum::<usize>() < 4 * EACH {
                for (p, n) in stack.take_all() {
                    taken[p].push(*n);
                }
            }
            producers.into_iter().for_each(|p| p.join().unwrap());
        });
        assert!(taken.iter().all(|t| t.iter().copied().eq(0..EACH)));
        stack.push((0, Box::new(7)));
        assert!(!stack.is_empty(), "dropped with what is in it");
    }
}
