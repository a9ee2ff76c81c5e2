//! Data types and reduction operators, by nccl-tests' names.
//!
//! Used by every layer above the plugin calls; defines sizes and names, and computes nothing.

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The name is not a data type, operator or collective.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("unknown {kind} {name:?}; the valid names are {}", .known.join(", "))]
pub struct UnknownName {
    /// The kind of name.
    pub kind: &'static str,
    /// The given name.
    pub name: String,
    /// The valid names.
    pub known: Vec<&'static str>,
}

macro_rules! named {
    ($(#[$doc:meta])* $type:ident, $kind:literal, { $($(#[$vdoc:meta])* $variant:ident = $name:literal),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, PartialEq, Serialize)]
        pub enum $type { $($(#[$vdoc])* $variant),* }

        impl $type {
            /// All values, in nccl-tests' order.
            pub const ALL: &[Self] = &[$(Self::$variant),*];
            /// Their names, in the same order.
            pub const NAMES: &[&str] = &[$($name),*];

            /// Returns the name.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),* }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }

        impl std::str::FromStr for $type {
            type Err = $crate::types::UnknownName;
            fn from_str(name: &str) -> Result<Self, Self::Err> {
                match name {
                    $($name => Ok(Self::$variant),)*
                    _ => Err($crate::types::UnknownName {
                        kind: $kind, name: name.to_owned(), known: Self::NAMES.to_vec(),
                    }),
                }
            }
        }
    };
}
pub(crate) use named;

named! {
    /// Type of an element.
    DataType, "data type", {
        /// Signed 8-bit integer.
        Int8 = "int8",
        /// Unsigned 8-bit integer.
        Uint8 = "uint8",
        /// Signed 32-bit integer.
        Int32 = "int32",
        /// Unsigned 32-bit integer.
        Uint32 = "uint32",
        /// Signed 64-bit integer.
        Int64 = "int64",
        /// Unsigned 64-bit integer.
        Uint64 = "uint64",
        /// IEEE 754 binary16.
        Half = "half",
        /// IEEE 754 binary32.
        Float = "float",
        /// IEEE 754 binary64.
        Double = "double",
        /// The upper half of a binary32.
        Bfloat16 = "bfloat16",
    }
}

impl DataType {
    /// Bytes of one element.
    pub fn element_bytes(self) -> usize {
        match self {
            Self::Int8 | Self::Uint8 => 1,
            Self::Half | Self::Bfloat16 => 2,
            Self::Int32 | Self::Uint32 | Self::Float => 4,
            Self::Int64 | Self::Uint64 | Self::Double => 8,
        }
    }
}

named! {
    /// Reduction operator.
    RedOp, "operator", {
        /// Sum; integers wrap.
        Sum = "sum",
        /// Product; integers wrap.
        Prod = "prod",
        /// Largest.
        Max = "max",
        /// Smallest.
        Min = "min",
        /// Sum divided by the number of ranks; integers round toward zero.
        Avg = "avg",
    }
}
