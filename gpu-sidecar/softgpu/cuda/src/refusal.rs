//! What is refused, where the result alone does not say why: a line on standard error for it, and a count at the server, which
//! `weir softgpu status` prints.

use std::collections::BTreeSet;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use softgpu_wire::message::{Kind, Message};

use crate::driver::{complain, driver};
use crate::error::{Error, Result};
use crate::image;
use crate::pointer::{self, Out, Text};

/// Lines printed for refused images, at most: a program that tries many is not to fill its log.
const LINES_MAX: usize = 64;

/// Prints a line, unless it was printed before.
fn complain_once(line: String) {
    static PRINTED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let mut printed = PRINTED.lock().unwrap_or_else(PoisonError::into_inner);
    if printed.len() > LINES_MAX || printed.contains(&line) {
        return;
    }
    if printed.len() == LINES_MAX {
        complain("further images are refused without a line");
    } else {
        complain(&line);
    }
    printed.insert(line);
}

/// Prints that a call was given an image that cannot run here.
pub(crate) fn refused(call: &str, what: &str) {
    complain_once(format!(
        "{call} refuses {what}: a software GPU runs Weir's own kernels, and PTX whose kernels softgpu.toml names ([[kernel]])"
    ));
}

/// Counts a function that is not there, once for each process. Before `cuInit` there is no server, and a later call counts.
pub(crate) fn count(name: &str, is_counted: &AtomicBool) {
    if let Ok(driver) = driver()
        && !is_counted.swap(true, Ordering::Relaxed)
    {
        let message = Message::new(Kind::Unsupported, &[]).with_bytes(name.as_bytes().to_vec());
        let _counted = driver.request(&message);
    }
}

/// `cuGetExportTable`: the tables behind the documented interface are the vendor's own. The CUDA runtime asks for them before
/// and after `cuInit`, and takes the result for its own; other programs go on without.
pub(crate) fn export_table(out: Out<*const c_void>) -> Result {
    static IS_PRINTED: AtomicBool = AtomicBool::new(false);
    static IS_COUNTED: AtomicBool = AtomicBool::new(false);
    out.put(std::ptr::null())?;
    if !IS_PRINTED.swap(true, Ordering::Relaxed) {
        complain("the CUDA runtime's private tables are not supported");
    }
    count("cuGetExportTable", &IS_COUNTED);
    Err(Error::NOT_FOUND)
}

fn no_linker(call: &'static str, what: &str, is_counted: &AtomicBool) -> Error {
    complain_once(format!(
        "{call} refuses {what}: a software GPU has no linker"
    ));
    count(call, is_counted);
    Error::NOT_SUPPORTED
}

/// `cuLinkCreate`.
pub(crate) fn link_create(call: &'static str) -> Result {
    static IS_COUNTED: AtomicBool = AtomicBool::new(false);
    Err(no_linker(call, "to begin", &IS_COUNTED))
}

/// `cuLinkAddData`, of so many bytes.
pub(crate) fn link_data(
    call: &'static str,
    data: *const c_void,
    bytes: usize,
    name: Text,
) -> Result {
    static IS_COUNTED: AtomicBool = AtomicBool::new(false);
    let what = image::of(&pointer::bytes_at(data, bytes)?).to_string();
    let named = name
        .string()
        .map(|name| format!("{what}, named \"{name}\""));
    Err(no_linker(call, &named.unwrap_or(what), &IS_COUNTED))
}

/// `cuLinkAddFile`.
pub(crate) fn link_file(call: &'static str, name: Text) -> Result {
    static IS_COUNTED: AtomicBool = AtomicBool::new(false);
    let name = name.string()?;
    let image = std::fs::read(&name).map_err(|_| Error::FILE_NOT_FOUND)?;
    let what = format!("{} in {name}", image::of(&image));
    Err(no_linker(call, &what, &IS_COUNTED))
}
