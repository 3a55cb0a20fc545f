//! Memory that belongs to graphs: there is none, as no graph here allocates.

use crate::driver::driver;
use crate::error::{Error, Result};
use crate::pointer::{In, Out};

/// Used now and at most, reserved now and at most.
const ATTRIBUTES: u32 = 4;
/// Those that may be set, to zero: the highest so far.
const HIGHEST: [u32; 2] = [1, 3];

/// `cuDeviceGetGraphMemAttribute`
pub(crate) fn attribute(device: i32, attribute: u32, out: Out<u64>) -> Result {
    driver()?.device(device)?;
    if attribute >= ATTRIBUTES {
        return Err(Error::INVALID_VALUE);
    }
    out.put(0)
}

/// `cuDeviceSetGraphMemAttribute`
pub(crate) fn set_attribute(device: i32, attribute: u32, value: In<u64>) -> Result {
    driver()?.device(device)?;
    if !HIGHEST.contains(&attribute) || value.get()? != 0 {
        return Err(Error::INVALID_VALUE);
    }
    Ok(())
}

/// `cuDeviceGraphMemTrim`
pub(crate) fn trim(device: i32) -> Result {
    driver()?.device(device).map(|_| ())
}
