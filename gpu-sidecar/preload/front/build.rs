//! Generates an exported function for every intercepted symbol, and limits the glibc version that the library requires.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::{env, fs};

use preload_table::{ENTRIES, NVML};

fn main() {
    preload_floor::link();
    for argument in [
        "-soname,libweir_preload.so",
        // Programs and drivers keep pointers to its functions, so it must never be unloaded.
        "-z,nodelete",
        // The addresses it returns must be those of its own functions, whatever was loaded before it.
        "-Bsymbolic-functions",
        // Nothing here unwinds. Without this definition the linker keeps the unwinder's support code for the sake of this one
        // symbol, and with it an allocator and libgcc_s.
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
            writeln!(source, "    {symbol} {index};").expect("writing to a String cannot fail");
        }
    }
    source.push_str(
        "}\n\n/// Exported function of each slot; `None` where the symbol is not intercepted.\n",
    );
    let count = symbols.len();
    writeln!(
        source,
        "static EXPORTED: [Option<extern \"C\" fn()>; {count}] = ["
    )
    .expect("writing to a String cannot fail");
    for symbol in &symbols {
        match symbol {
            Some(symbol) => writeln!(source, "    Some({symbol}),"),
            None => writeln!(source, "    None,"),
        }
        .expect("writing to a String cannot fail");
    }
    source.push_str("];\n");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("OUT_DIR must be set by cargo"));
    fs::write(out.join("stubs.rs"), source).expect("OUT_DIR must be writable");
}
