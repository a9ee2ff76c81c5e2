//! The device header as text, for whoever compiles kernels at run time: no file need be installed. Its files are in `include/trunkline`.

/// A file of the header: the name by which `#include` finds it, and its text.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct File {
    /// From the include folder on, or as another file of the header names it.
    pub name: &'static str,
    /// The text.
    pub text: &'static str,
}

macro_rules! files {
    ($($name:literal),* $(,)?) => {
        [$(File { name: $name, text: include_str!(concat!("../../../include/trunkline/", $name)) }),*]
    };
}

/// All files. A kernel includes the first; the others are included by files of the header, with or without the folder's name `device/`.
pub const FILES: [File; 14] = files![
    "device.h",
    "device/abi.h",
    "device/entry.h",
    "device/group.h",
    "device/lane.h",
    "device/mlx5.h",
    "device/original.h",
    "device/platform.h",
    "device/platform_cuda.h",
    "device/platform_hip.h",
    "device/platform_host.h",
    "device/queue.h",
    "device/slot.h",
    "device/successor.h",
];
