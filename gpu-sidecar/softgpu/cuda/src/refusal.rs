//! What a result code does not explain, why a call is refused and which kernels are not computed: a line on standard error, and
//! a count at the server, which `weir softgpu status` prints.

use std::collections::BTreeSet;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use softgpu_wire::message::{Kind, Message};

use crate::driver::{Driver, driver, report};
use crate::error::{Error, Result};
use crate::image;
use crate::module::ForeignKernel;
use crate::pointer::{self, Out, Text};

/// Largest number of lines of one sort, so that a program that tries many images does not fill its log.
const LINES_MAX: usize = 64;
/// Largest length of a kernel's name in a line and in the server's count, in bytes; longer ones are cut.
const NAME_MAX: usize = 256;
/// Largest number of kernels reported by a process.
const KERNELS_MAX: usize = 2_000;

/// Lines of one sort that were printed.
struct Lines {
    printed: Mutex<BTreeSet<String>>,
    /// Line that stands for all after the first [`LINES_MAX`].
    others: &'static str,
}

static REFUSED: Lines = Lines {
    printed: Mutex::new(BTreeSet::new()),
    others: "further refused images are not reported",
};
static MODELLED: Lines = Lines {
    printed: Mutex::new(BTreeSet::new()),
    others: "further kernels whose result is not computed are not reported",
};

impl Lines {
    /// Prints a line, unless it was printed before.
    fn print_once(&self, line: String) {
        let mut printed = self.printed.lock().unwrap_or_else(PoisonError::into_inner);
        if printed.len() > LINES_MAX || printed.contains(&line) {
            return;
        }
        if printed.len() == LINES_MAX {
            report(self.others);
        } else {
            report(&line);
        }
        printed.insert(line);
    }
}

/// Reports that a call was given an image without code for a device of this architecture, for example 90.
pub(crate) fn refused(call: &str, what: &str, architecture: u32) {
    REFUSED.print_once(format!(
        "{call} refuses {what}: no machine code for sm_{architecture}, and no PTX for compute_{architecture} or an earlier one"
    ));
}

/// Kernels whose result is not computed, by name.
struct ModelledKernels {
    /// Names that were reported or are to be, at most [`KERNELS_MAX`].
    names: BTreeSet<String>,
    /// Names that are to be reported.
    pending: Vec<String>,
}

static KERNELS: Mutex<ModelledKernels> = Mutex::new(ModelledKernels {
    names: BTreeSet::new(),
    pending: Vec::new(),
});
static HAS_PENDING: AtomicBool = AtomicBool::new(false);

/// Notes a launch of a kernel whose time is modelled and whose result is not computed, for [`report_modelled`].
pub(crate) fn modelled(kernel: &ForeignKernel) {
    let is_noted = &kernel.is_noted;
    if is_noted.load(Ordering::Relaxed) || is_noted.swap(true, Ordering::Relaxed) {
        return;
    }
    let name: String = kernel.info.name.escape_debug().collect();
    let name = &name[..name.floor_char_boundary(NAME_MAX)];
    let mut kernels = KERNELS.lock().unwrap_or_else(PoisonError::into_inner);
    if kernels.names.len() < KERNELS_MAX && kernels.names.insert(name.to_owned()) {
        kernels.pending.push(name.to_owned());
        HAS_PENDING.store(true, Ordering::Relaxed);
    }
}

/// Reports kernels that were launched for the first time. Must be called without the lock of the state: it writes to standard error
/// and waits for the server.
pub(crate) fn report_modelled(driver: &Driver) {
    if !HAS_PENDING.load(Ordering::Relaxed) || !HAS_PENDING.swap(false, Ordering::Relaxed) {
        return;
    }
    let pending = {
        let mut kernels = KERNELS.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut kernels.pending)
    };
    for name in pending {
        MODELLED.print_once(format!("kernel {name}: time modelled, result not computed"));
        let message = Message::new(Kind::Modelled, &[]).with_bytes(name.into_bytes());
        let _counted = driver.request(&message);
    }
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
    REFUSED.print_once(format!(
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
