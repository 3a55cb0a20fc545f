//! Passes the folder of cargo's libraries to the program, so that a copy made by `cargo install` finds them.

use std::path::Path;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let out = std::env::var("OUT_DIR").unwrap_or_default();
    // target/PROFILE/build/PACKAGE/out
    let profile = Path::new(&out).ancestors().nth(3);
    let is_shipped = profile.is_some_and(|folder| folder.ends_with("dist"));
    // A distributed executable must not name folders of the build machine.
    let folder = profile.filter(|_| !is_shipped);
    let folder = folder.map_or_else(String::new, |folder| folder.display().to_string());
    println!("cargo::rustc-env=WEIR_BUILT_IN={folder}");
}
