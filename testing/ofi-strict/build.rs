//! The provider stays in memory once it is loaded: what it says when the process ends is code of its own.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
