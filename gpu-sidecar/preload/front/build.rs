//! Makes a function for every symbol that the library exports, and keeps what it needs of the system old.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::{env, fs};

use preload_table::{ENTRIES, NVML};

fn main() {
    preload_floor::link();
    for argument in [
        "-soname,libweir_preload.so",
        // Its functions are in the hands of programs and drivers for good.
        "-z,nodelete",
        // The addresses that it hands out are its own, whatever was loaded before it.
        "-Bsymbolic-functions",
        // Nothing here unwinds. The linker keeps whatever the unwinder would need, and with it an allocator and libgcc_s, for
        // the sake of this one symbol, and nothing of that once it is nowhere.
        "--defsym=rust_eh_personality=0",
    ] {
        println!("cargo::rustc-cdylib-link-arg=-Wl,{argument}");
    }
    let hooked = ENTRIES
        .iter()
        .map(|entry| entry.is_hooked().then(|| entry.symbol()));
    let nvml = NVML.iter().map(|name| name.to_str().ok());
    let symbols: Vec<_> = hooked.chain(nvml).collect();
    let mut source = String::from("stubs! {\n");
    for (index, symbol) in symbols.iter().enumerate() {
        if let Some(symbol) = symbol {
            writeln!(source, "    {symbol} {index};").expect("a string");
        }
    }
    source.push_str("}\n\n/// The exported function of each slot.\n");
    let count = symbols.len();
    writeln!(
        source,
        "static EXPORTED: [Option<extern \"C\" fn()>; {count}] = ["
    )
    .expect("a string");
    for symbol in &symbols {
        match symbol {
            Some(symbol) => writeln!(source, "    Some({symbol}),"),
            None => writeln!(source, "    None,"),
        }
        .expect("a string");
    }
    source.push_str("];\n");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    fs::write(out.join("stubs.rs"), source).expect("OUT_DIR is there to be written to");
}
