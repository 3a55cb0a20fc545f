//! Gives the library the name by which programs ask for it.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    // As in the vendor's library, no other library comes between its own functions.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic-functions");
}
