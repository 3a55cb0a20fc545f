//! Graph memory attributes. Graphs here allocate no memory, so that all of them are 0.

use crate::driver::driver;
use crate::error::{Error, Result};
use crate::pointer::{In, Out};

/// Number of attributes: used now and at most, reserved now and at most.
const ATTRIBUTES: u32 = 4;
/// Attributes that may be reset to 0: the high-water marks.
const HIGHEST: [u32; 2] = [1, 3];

/// Implements `cuDeviceGetGraphMemAttribute`: returns 0 for every attribute.
pub(crate) fn attribute(device: i32, attribute: u32, out: Out<u64>) -> Result {
    driver()?.device(device)?;
    if attribute >= ATTRIBUTES {
        return Err(Error::INVALID_VALUE);
    }
    out.put(0)
}

/// Implements `cuDeviceSetGraphMemAttribute`: accepts a reset of a high-water mark.
pub(crate) fn set_attribute(device: i32, attribute: u32, value: In<u64>) -> Result {
    driver()?.device(device)?;
    if !HIGHEST.contains(&attribute) || value.get()? != 0 {
        return Err(Error::INVALID_VALUE);
    }
    Ok(())
}

/// Implements `cuDeviceGraphMemTrim`: does nothing but check the device.
pub(crate) fn trim(device: i32) -> Result {
    driver()?.device(device).map(|_| ())
}
