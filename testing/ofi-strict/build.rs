//! Keeps the provider's library in memory once it is loaded, because its exit handler runs when the process ends.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
