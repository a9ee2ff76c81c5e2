//! What a host is made of, as far as Trunkline asks: its network interfaces, and which of them to use. Front ends ask
//! once, at start, and pass the answer on as values; nothing here opens a socket or moves a byte.

#![forbid(unsafe_code)]

mod choice;
mod interface;

pub use choice::{Choice, ChoiceError, Family, VARIABLES, Variable};
pub use interface::{Interface, interfaces};
