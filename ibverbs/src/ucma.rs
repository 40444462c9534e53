//! Answers `/dev/infiniband/rdma_cm` inside the process.
//!
//! librdmacm reaches the kernel's connection manager through one character device: it opens the
//! device for each event channel, writes commands, and polls the descriptor for events. This module
//! gives the distribution's librdmacm another descriptor, takes its commands, and carries them out
//! with the process's RNIC.
//!
//! | Module | Holds |
//! |---|---|
//! | `number`, `address`, `errno` | numbers and addresses of the ABI |
//! | `command`, `reply` | bytes of a command, and of its answer |
//! | `state` | ids, their states and their events: pure, driven by tests and a fuzzer |
//! | `device` | the RNIC as the state machine uses it |
//! | `pipe` | the descriptor that a program gets |
//! | `memory` | the program's memory, where commands and answers lie |
//! | `service` | the state of this process, its lock and its thread |
//! | `hook`, `elf` | librdmacm's calls, led here |
//!
//! **Features of an iWARP device.** Connections of the TCP port space; no datagrams, no multicast,
//! no `AF_IB`. Both sides of a connection get `ESTABLISHED`, its end is `DISCONNECTED`, and neither
//! `CONNECT_RESPONSE` nor `TIMEWAIT_EXIT` exists.

pub mod address;
pub mod command;
mod device;
mod elf;
pub mod errno;
mod hook;
mod memory;
pub mod number;
mod pipe;
pub mod reply;
mod service;
pub mod state;

pub use hook::install;
