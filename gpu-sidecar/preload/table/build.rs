//! Turns `functions.txt` into one string and an array of places in it.
//!
//! An array of strings would be one relocation for each of them, done at the start of every process that the library is
//! loaded into, whether it uses CUDA or not.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::{env, fs};

fn main() {
    println!("cargo::rerun-if-changed=functions.txt");
    println!("cargo::rerun-if-changed=build.rs");
    let lines = fs::read_to_string("functions.txt").expect("functions.txt");
    let mut text = String::new();
    let mut entries = String::new();
    let mut count = 0;
    for line in lines.lines().filter(|line| !line.starts_with('#')) {
        let [name, stream, version, symbol, class, signature, words @ ..] =
            &*line.split(' ').collect::<Vec<_>>()
        else {
            panic!("functions.txt: {line}");
        };
        assert!(symbol.starts_with(name), "{line}");
        let per_thread = match *stream {
            "legacy" => false,
            "per-thread" => true,
            _ => panic!("functions.txt: {line}"),
        };
        let (first, rest) = class.split_at(1);
        let class = first.to_uppercase() + rest;
        let signature = signature.trim_start_matches('-');
        let at = text.len();
        // The symbol ends with a zero, so that it is a C string as it stands.
        write!(text, "{symbol}\\0{signature}").expect("a string");
        // The two characters of the escape are one in the string.
        let at = at - count;
        count += 1;
        let hooked = class != "Other" || words.contains(&"hooked");
        let narrow = words.contains(&"32-bit");
        writeln!(
            entries,
            "Entry {{ at: {at}, symbol: {}, name: {}, signature: {}, version: {version}, class: Class::{class}, \
             is_per_thread: {per_thread}, is_hooked: {hooked}, is_32_bit: {narrow} }},",
            symbol.len(),
            name.len(),
            signature.len(),
        )
        .expect("a string");
    }
    let source = format!(
        "const TEXT: &str = \"{text}\";\n/// All functions, by their symbols.\npub static ENTRIES: [Entry; {count}] = [\n{entries}];\n"
    );
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    fs::write(out.join("entries.rs"), source).expect("OUT_DIR is there to be written to");
}
