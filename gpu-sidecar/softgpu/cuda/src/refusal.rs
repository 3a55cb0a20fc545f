//! Refusals whose result code does not explain the reason: a line on standard error, and a count at the server, which
//! `weir softgpu status` prints.

use std::collections::BTreeSet;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use softgpu_wire::message::{Kind, Message};

use crate::driver::{driver, report};
use crate::error::{Error, Result};
use crate::image;
use crate::pointer::{self, Out, Text};

/// Largest number of lines printed for refused images, so that a program that tries many does not fill its log.
const LINES_MAX: usize = 64;

/// Prints a line, unless it was printed before.
fn report_once(line: String) {
    static PRINTED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let mut printed = PRINTED.lock().unwrap_or_else(PoisonError::into_inner);
    if printed.len() > LINES_MAX || printed.contains(&line) {
        return;
    }
    if printed.len() == LINES_MAX {
        report("further refused images are not reported");
    } else {
        report(&line);
    }
    printed.insert(line);
}

/// Reports that a call was given an image that cannot run here.
pub(crate) fn refused(call: &str, what: &str) {
    report_once(format!(
        "{call} refuses {what}: a software GPU runs Weir's own kernels, and PTX whose kernels softgpu.toml names ([[kernel]])"
    ));
}

/// Counts an unsupported function, once for each process. Before `cuInit` there is no server, and a later call counts.
pub(crate) fn count(name: &str, is_counted: &AtomicBool) {
    if let Ok(driver) = driver()
        && !is_counted.swap(true, Ordering::Relaxed)
    {
        let message = Message::new(Kind::Unsupported, &[]).with_bytes(name.as_bytes().to_vec());
        let _counted = driver.request(&message);
    }
}

/// Implements `cuGetExportTable`: always fails, because the tables are the vendor's undocumented interface. The CUDA
/// runtime requests them before and after `cuInit` and returns this error as its own; other programs continue without.
pub(crate) fn export_table(out: Out<*const c_void>) -> Result {
    static IS_PRINTED: AtomicBool = AtomicBool::new(false);
    static IS_COUNTED: AtomicBool = AtomicBool::new(false);
    out.put(std::ptr::null())?;
    if !IS_PRINTED.swap(true, Ordering::Relaxed) {
        report("the CUDA runtime's private tables are not supported");
    }
    count("cuGetExportTable", &IS_COUNTED);
    Err(Error::NOT_FOUND)
}

fn no_linker(call: &'static str, what: &str, is_counted: &AtomicBool) -> Error {
    report_once(format!(
        "{call} refuses {what}: a software GPU has no linker"
    ));
    count(call, is_counted);
    Error::NOT_SUPPORTED
}

/// Implements `cuLinkCreate`: reports that there is no linker.
pub(crate) fn link_create(call: &'static str) -> Result {
    static IS_COUNTED: AtomicBool = AtomicBool::new(false);
    Err(no_linker(call, "a new link", &IS_COUNTED))
}

/// Implements `cuLinkAddData`: reports the format and name of the refused input.
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

/// Implements `cuLinkAddFile`: reports the format and name of the refused file.
pub(crate) fn link_file(call: &'static str, name: Text) -> Result {
    static IS_COUNTED: AtomicBool = AtomicBool::new(false);
    let name = name.string()?;
    let image = std::fs::read(&name).map_err(|_| Error::FILE_NOT_FOUND)?;
    let what = format!("{} in {name}", image::of(&image));
    Err(no_linker(call, &what, &IS_COUNTED))
}
