//! Encoders and parsers of all wire formats; docs/wire.md specifies each. Every parser accepts hostile bytes, and returns a value that is valid as a
//! whole, or an error. No parser keeps state or performs I/O.

pub mod cts;
pub mod cursor;
pub mod delivery_report;
pub mod device_queue;
pub mod dial;
pub mod eager;
pub mod fabric;
pub mod fin;
pub mod frame;
pub mod handle;
pub mod imm;
pub mod introduction;
pub mod ipc;
pub mod layout;
pub mod member;
pub mod memory_handle;
pub mod mlx5;
pub mod pe;
pub mod proof;
pub mod rma;
pub mod share;
pub mod socket_address;
pub mod start_notice;
pub mod status;
pub mod strand;
pub mod tagged;
pub mod window;
