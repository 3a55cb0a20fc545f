//! Sets the library's soname, by which programs load it.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    // As in the vendor's library, calls between the library's own functions cannot be interposed.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic-functions");
}
