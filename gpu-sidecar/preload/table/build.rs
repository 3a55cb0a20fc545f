//! Generates one string and an array of offsets into it from `functions.txt`.
//!
//! An array of strings would need one relocation per string at the start of every process that loads the library, whether it uses
//! CUDA or not.

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
            panic!("functions.txt: expected six fields and optional words: {line}");
        };
        assert!(
            symbol.starts_with(name),
            "functions.txt: the symbol must begin with the name: {line}"
        );
        let per_thread = match *stream {
            "legacy" => false,
            "per-thread" => true,
            _ => panic!("functions.txt: expected `legacy` or `per-thread`: {line}"),
        };
        let (first, rest) = class.split_at(1);
        let class = first.to_uppercase() + rest;
        let signature = signature.trim_start_matches('-');
        let at = text.len();
        // The symbol is NUL-terminated, so that it is a C string in place.
        write!(text, "{symbol}\\0{signature}").expect("writing to a String cannot fail");
        // The escape is two characters here and one byte in the string.
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
        .expect("writing to a String cannot fail");
    }
    let source = format!(
        "const TEXT: &str = \"{text}\";\n/// All functions of the driver API, sorted by symbol.\npub static ENTRIES: [Entry; {count}] = [\n{entries}];\n"
    );
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("OUT_DIR must be set by cargo"));
    fs::write(out.join("entries.rs"), source).expect("OUT_DIR must be writable");
}
