//! Gives the program the folder in which cargo has put its libraries, so that a copy that `cargo install` has made elsewhere finds them.

use std::path::Path;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let out = std::env::var("OUT_DIR").unwrap_or_default();
    // target/PROFILE/build/PACKAGE/out
    let profile = Path::new(&out).ancestors().nth(3);
    let is_shipped = profile.is_some_and(|folder| folder.ends_with("dist"));
    // What is shipped names no folder of the machine that has built it.
    let folder = profile.filter(|_| !is_shipped);
    let folder = folder.map_or_else(String::new, |folder| folder.display().to_string());
    println!("cargo::rustc-env=WEIR_BUILT_IN={folder}");
}
