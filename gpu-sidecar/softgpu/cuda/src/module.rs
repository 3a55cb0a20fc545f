//! Modules, libraries, and their kernels: those of Weir's own PTX, recognized by its hash, and foreign ones, whose time is
//! modelled and whose result is not computed. An image without code for the device is refused when it is loaded.

use std::ffi::{CString, c_char, c_void};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use softgpu_wire::config::KernelConfig;

use crate::context::Context;
use crate::driver::{Driver, driver};
use crate::error::{Error, Result};
use crate::image::{self, Image, KernelInfo};
use crate::occupancy::{Resources, THREADS_OF_A_BLOCK};
use crate::pointer::{Out, Text};
use crate::refusal;
use crate::state::State;
use crate::table::{Handle, Kind};

/// Code of a kernel.
#[derive(Clone, Debug)]
pub(crate) enum Code {
    /// One of Weir's own kernels.
    Own(kernels::Kernel),
    /// A kernel whose time is modelled, and whose result is not computed.
    Foreign(Arc<ForeignKernel>),
}

/// A kernel of a foreign image.
#[derive(Debug)]
pub(crate) struct ForeignKernel {
    pub(crate) info: KernelInfo,
    /// Entry of the configuration for its name.
    pub(crate) rule: Option<KernelConfig>,
    /// Whether its first launch was noted.
    pub(crate) is_noted: AtomicBool,
}

/// Largest number of kernels of an image.
const KERNELS_MAX: usize = 1 << 16;

/// A module loaded in a context.
pub(crate) struct Module {
    pub(crate) context: Handle<Context>,
    functions: Vec<Handle<Function>>,
    library: Handle<Library>,
}

/// A function of a module.
pub(crate) struct Function {
    pub(crate) context: Handle<Context>,
    pub(crate) module: Handle<Module>,
    pub(crate) name: CString,
    pub(crate) code: Code,
    attributes: [i32; 20],
}

/// A library: code that belongs to no context.
pub(crate) struct Library {
    image: Arc<Image>,
    /// Architecture for which `kernels` were read.
    architecture: u32,
    kernels: Vec<Handle<Kernel>>,
    /// Module of the library in each context that uses it.
    modules: Vec<(Handle<Context>, Handle<Module>)>,
}

/// A kernel of a library, which stands for a function in the context of the launch.
pub(crate) struct Kernel {
    library: Handle<Library>,
    name: CString,
    code: Code,
    /// Place in the library, which is that of the function in the library's module unless another device has other code.
    index: usize,
}

impl Kind for Module {
    const NUMBER: u64 = 4;
}
impl Kind for Function {
    const NUMBER: u64 = 5;
}
impl Kind for Library {
    const NUMBER: u64 = 6;
}
impl Kind for Kernel {
    const NUMBER: u64 = 7;
}

impl Code {
    fn name(&self) -> CString {
        let name = match self {
            Self::Own(kernel) => kernel.name(),
            Self::Foreign(kernel) => kernel.info.name.as_str(),
        };
        CString::new(name).unwrap_or_default()
    }

    /// Returns the layout of the parameters.
    pub(crate) fn parameters(&self) -> &[kernels::Parameter] {
        match self {
            Self::Own(kernel) => kernel.parameters(),
            Self::Foreign(kernel) => &kernel.info.parameters,
        }
    }

    /// Returns the size of the parameter buffer, in bytes.
    pub(crate) fn parameter_bytes(&self) -> usize {
        match self {
            Self::Own(kernel) => kernel.parameter_bytes(),
            Self::Foreign(kernel) => kernel.info.parameter_bytes(),
        }
    }

    /// Returns the largest number of threads of a block.
    pub(crate) fn threads_max(&self) -> u32 {
        match self {
            Self::Own(_) => THREADS_OF_A_BLOCK,
            Self::Foreign(kernel) => kernel.info.threads_max,
        }
    }

    /// Returns what a block of this many threads occupies of an SM, with this much dynamic shared memory in bytes.
    pub(crate) fn resources(&self, threads: u32, dynamic_bytes: u32) -> Resources {
        let (registers, shared_bytes) = match self {
            // Of Weir's own kernels neither limits the number of blocks.
            Self::Own(_) => (0, 0),
            Self::Foreign(kernel) => {
                let shared = kernel.info.shared_bytes.saturating_add(dynamic_bytes);
                (kernel.info.registers, shared)
            }
        };
        Resources {
            threads,
            registers,
            shared_bytes,
        }
    }
}

/// Returns the architecture of a device, for example 90.
fn architecture(driver: &Driver, device: usize) -> Result<u32> {
    let device = driver.devices.get(device).ok_or(Error::NO_DEVICE)?;
    let [major, minor] = device.part.compute_capability;
    Ok(major * 10 + minor)
}

/// Returns the current context with its device.
fn context_here(driver: &Driver, state: &State) -> Result<(Handle<Context>, usize)> {
    let context = driver.current(state)?;
    let there = state.contexts.get(context).ok_or(Error::INVALID_CONTEXT)?;
    Ok((context, there.device))
}

/// Returns the kernels of an image passed to `call` for a device; refuses one that cannot run here, with a line on standard error.
fn read(driver: &Driver, call: &str, image: &Image, device: usize) -> Result<Vec<Code>> {
    if let Image::Ptx(text) = image
        && kernels::is_ours(text.as_bytes())
    {
        return Ok(kernels::Kernel::ALL.into_iter().map(Code::Own).collect());
    }
    let architecture = architecture(driver, device)?;
    let Some(kernels) = image.kernels(architecture) else {
        let error = match image {
            Image::OtherElf(_) | Image::Other(_) => Error::INVALID_IMAGE,
            Image::Ptx(_) | Image::Cubin(_) | Image::Fat(_) => Error::NO_BINARY_FOR_GPU,
        };
        refusal::refused(call, &image.to_string(), architecture);
        return Err(error);
    };
    if kernels.len() > KERNELS_MAX {
        return Err(Error::OUT_OF_MEMORY);
    }
    let foreign = kernels.into_iter().map(|info| {
        let rules = &driver.config.kernels;
        let rule = rules.iter().find(|rule| rule.matches(&info.name)).cloned();
        Code::Foreign(Arc::new(ForeignKernel {
            info,
            rule,
            is_noted: AtomicBool::new(false),
        }))
    });
    Ok(foreign.collect())
}

fn load(driver: &Driver, call: &str, out: Out<Handle<Module>>, image: &Image) -> Result {
    if out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    let (context, device) = context_here(driver, &driver.state())?;
    // Without the lock: reading a large image takes long.
    let codes = read(driver, call, image, device)?;
    let mut state = driver.state();
    state
        .contexts
        .get(context)
        .ok_or(Error::CONTEXT_IS_DESTROYED)?;
    let module = add(&mut state, context, &codes, Handle::NULL)?;
    out.put(module)
}

fn add(
    state: &mut State,
    context: Handle<Context>,
    codes: &[Code],
    library: Handle<Library>,
) -> Result<Handle<Module>> {
    let module = Module {
        context,
        functions: Vec::new(),
        library,
    };
    let module = state.modules.insert(module).ok_or(Error::OUT_OF_MEMORY)?;
    for code in codes {
        let function = Function {
            context,
            module,
            name: code.name(),
            code: code.clone(),
            attributes: attributes(code),
        };
        let Some(function) = state.functions.insert(function) else {
            forget(state, module);
            return Err(Error::OUT_OF_MEMORY);
        };
        if let Some(module) = state.modules.get_mut(module) {
            module.functions.push(function);
        }
    }
    Ok(module)
}

/// Returns the attributes of a function, indexed by `CUfunction_attribute`.
fn attributes(code: &Code) -> [i32; 20] {
    let number = |value: u32| i32::try_from(value).unwrap_or(i32::MAX);
    let mut attributes = [0; 20];
    attributes[0] = number(code.threads_max());
    (attributes[4], attributes[5], attributes[6]) = (24, 64, 70);
    if let Code::Foreign(kernel) = code {
        attributes[1] = number(kernel.info.shared_bytes);
        attributes[3] = number(kernel.info.local_bytes);
        attributes[4] = number(kernel.info.registers);
        // Versions of the PTX and of the machine code.
        attributes[5] = number(kernel.info.architecture);
        attributes[6] = number(kernel.info.architecture);
    }
    attributes[8] = 48 << 10; // dynamic shared memory, at most
    attributes
}

/// Removes a module with its functions.
pub(crate) fn forget(state: &mut State, module: Handle<Module>) {
    let Some(there) = state.modules.remove(module) else {
        return;
    };
    for function in there.functions {
        state.functions.remove(function);
    }
    if let Some(library) = state.libraries.get_mut(there.library) {
        library.modules.retain(|(_, of)| *of != module);
    }
}

/// Implements `cuModuleLoadData`, `cuModuleLoadDataEx` and `cuModuleLoadFatBinary`; compiler options are ignored.
pub(crate) fn load_data(call: &str, out: Out<Handle<Module>>, at: *const c_void) -> Result {
    let driver = driver()?;
    load(driver, call, out, &image::at(at)?)
}

/// Implements `cuModuleLoad`: loads a module from a file.
pub(crate) fn load_file(call: &str, out: Out<Handle<Module>>, name: Text) -> Result {
    let driver = driver()?;
    let name = name.string()?;
    let image = std::fs::read(name).map_err(|_| Error::FILE_NOT_FOUND)?;
    load(driver, call, out, &image::of(&image))
}

/// Implements `cuModuleUnload`: fails for the module of a library.
pub(crate) fn unload(module: Handle<Module>) -> Result {
    let driver = driver()?;
    let mut state = driver.state();
    driver.current(&state)?;
    let there = state.modules.get(module).ok_or(Error::INVALID_HANDLE)?;
    if !there.library.is_null() {
        return Err(Error::NOT_PERMITTED);
    }
    forget(&mut state, module);
    Ok(())
}

/// Implements `cuModuleGetFunction`: finds a function of a module by name.
pub(crate) fn get_function(
    out: Out<Handle<Function>>,
    module: Handle<Module>,
    name: Text,
) -> Result {
    let driver = driver()?;
    let state = driver.state();
    let name = name.get()?;
    let module = state.modules.get(module).ok_or(Error::INVALID_HANDLE)?;
    let found = module.functions.iter().find(|&&function| {
        state
            .functions
            .get(function)
            .is_some_and(|function| function.name == name)
    });
    out.put(*found.ok_or(Error::NOT_FOUND)?)
}

/// Implements `cuModuleGetFunctionCount`: returns the number of a module's functions.
pub(crate) fn function_count(out: Out<u32>, module: Handle<Module>) -> Result {
    let driver = driver()?;
    let state = driver.state();
    let module = state.modules.get(module).ok_or(Error::INVALID_HANDLE)?;
    out.put(u32::try_from(module.functions.len()).unwrap_or(u32::MAX))
}

/// Implements `cuModuleEnumerateFunctions`: lists up to `count` functions of a module.
pub(crate) fn enumerate_functions(
    out: Out<Handle<Function>>,
    count: u32,
    module: Handle<Module>,
) -> Result {
    let driver = driver()?;
    let state = driver.state();
    let module = state.modules.get(module).ok_or(Error::INVALID_HANDLE)?;
    for (at, function) in module.functions.iter().take(count as usize).enumerate() {
        out.put_at(at, *function)?;
    }
    Ok(())
}

/// Implements `cuModuleGetLoadingMode`: always returns eager (1).
pub(crate) fn loading_mode(out: Out<u32>) -> Result {
    driver()?;
    out.put(1)
}

/// Implements `cuModuleGetGlobal_v2`: always fails, because variables of modules are not supported.
pub(crate) fn get_global(module: Handle<Module>) -> Result {
    let driver = driver()?;
    let state = driver.state();
    state.modules.get(module).ok_or(Error::INVALID_HANDLE)?;
    Err(Error::NOT_FOUND)
}

/// Implements `cuLibraryLoadData`: loads a library from memory.
pub(crate) fn library_load_data(
    call: &str,
    out: Out<Handle<Library>>,
    at: *const c_void,
) -> Result {
    let driver = driver()?;
    library_load(driver, call, out, image::at(at)?)
}

/// Implements `cuLibraryLoadFromFile`: loads a library from a file.
pub(crate) fn library_load_file(call: &str, out: Out<Handle<Library>>, name: Text) -> Result {
    let driver = driver()?;
    let image = std::fs::read(name.string()?).map_err(|_| Error::FILE_NOT_FOUND)?;
    library_load(driver, call, out, image::of(&image))
}

fn library_load(driver: &Driver, call: &str, out: Out<Handle<Library>>, image: Image) -> Result {
    if out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    // A library belongs to no context; one on another kind of device reads the image again.
    let device = context_here(driver, &driver.state()).map_or(0, |(_, device)| device);
    let codes = read(driver, call, &image, device)?;
    let mut state = driver.state();
    let library = Library {
        image: Arc::new(image),
        architecture: architecture(driver, device)?,
        kernels: Vec::new(),
        modules: Vec::new(),
    };
    let library = state
        .libraries
        .insert(library)
        .ok_or(Error::OUT_OF_MEMORY)?;
    for (index, code) in codes.into_iter().enumerate() {
        let kernel = Kernel {
            library,
            name: code.name(),
            code,
            index,
        };
        let Some(kernel) = state.kernels.insert(kernel) else {
            forget_library(&mut state, library);
            return Err(Error::OUT_OF_MEMORY);
        };
        if let Some(library) = state.libraries.get_mut(library) {
            library.kernels.push(kernel);
        }
    }
    out.put(library)
}

/// Implements `cuLibraryUnload`: removes a library with its modules and kernels.
pub(crate) fn library_unload(library: Handle<Library>) -> Result {
    let driver = driver()?;
    let mut state = driver.state();
    let is_there = forget_library(&mut state, library);
    is_there.then_some(()).ok_or(Error::INVALID_HANDLE)
}

/// Removes a library with its modules and kernels. Returns whether it was there.
fn forget_library(state: &mut State, library: Handle<Library>) -> bool {
    let Some(there) = state.libraries.remove(library) else {
        return false;
    };
    for (_, module) in there.modules {
        forget(state, module);
    }
    for kernel in there.kernels {
        state.kernels.remove(kernel);
    }
    true
}

/// Implements `cuLibraryGetKernel`: finds a kernel of a library by name.
pub(crate) fn library_kernel(
    out: Out<Handle<Kernel>>,
    library: Handle<Library>,
    name: Text,
) -> Result {
    let driver = driver()?;
    let state = driver.state();
    let name = name.get()?;
    let library = state.libraries.get(library).ok_or(Error::INVALID_HANDLE)?;
    let found = library.kernels.iter().find(|&&kernel| {
        state
            .kernels
            .get(kernel)
            .is_some_and(|kernel| kernel.name == name)
    });
    out.put(*found.ok_or(Error::NOT_FOUND)?)
}

/// Implements `cuLibraryGetKernelCount`: returns the number of a library's kernels.
pub(crate) fn library_kernel_count(out: Out<u32>, library: Handle<Library>) -> Result {
    let driver = driver()?;
    let state = driver.state();
    let library = state.libraries.get(library).ok_or(Error::INVALID_HANDLE)?;
    out.put(u32::try_from(library.kernels.len()).unwrap_or(u32::MAX))
}

/// Implements `cuLibraryEnumerateKernels`: lists up to `count` kernels of a library.
pub(crate) fn library_enumerate(
    out: Out<Handle<Kernel>>,
    count: u32,
    library: Handle<Library>,
) -> Result {
    let driver = driver()?;
    let state = driver.state();
    let library = state.libraries.get(library).ok_or(Error::INVALID_HANDLE)?;
    for (at, kernel) in library.kernels.iter().take(count as usize).enumerate() {
        out.put_at(at, *kernel)?;
    }
    Ok(())
}

/// Returns the module of a library in the current context, creating it on first use.
fn module_of(
    driver: &Driver,
    state: &mut State,
    library: Handle<Library>,
) -> Result<Handle<Module>> {
    let (context, device) = context_here(driver, state)?;
    let there = state.libraries.get(library).ok_or(Error::INVALID_HANDLE)?;
    if let Some((_, module)) = there.modules.iter().find(|(of, _)| *of == context) {
        return Ok(*module);
    }
    let codes: Vec<_> = if architecture(driver, device)? == there.architecture {
        let kernels = there.kernels.iter();
        kernels
            .filter_map(|kernel| state.kernels.get(*kernel))
            .map(|kernel| kernel.code.clone())
            .collect()
    } else {
        read(
            driver,
            "cuLibraryGetModule",
            &Arc::clone(&there.image),
            device,
        )?
    };
    let module = add(state, context, &codes, library)?;
    if let Some(library) = state.libraries.get_mut(library) {
        library.modules.push((context, module));
    }
    Ok(module)
}

/// Implements `cuLibraryGetModule`: returns the library's module in the current context.
pub(crate) fn library_module(out: Out<Handle<Module>>, library: Handle<Library>) -> Result {
    let driver = driver()?;
    let mut state = driver.state();
    let module = module_of(driver, &mut state, library)?;
    out.put(module)
}

/// Resolves a handle to a function; a library's kernel becomes the function of its module in the current context.
pub(crate) fn function(
    driver: &Driver,
    state: &mut State,
    handle: Handle<Function>,
) -> Result<Handle<Function>> {
    if state.functions.get(handle).is_some() {
        return Ok(handle);
    }
    let kernel = Handle::<Kernel>::from_raw(handle.raw());
    let there = state.kernels.get(kernel).ok_or(Error::INVALID_HANDLE)?;
    let (library, index) = (there.library, there.index);
    let module = module_of(driver, state, library)?;
    let module = state.modules.get(module).ok_or(Error::INVALID_HANDLE)?;
    let there = state.kernels.get(kernel).ok_or(Error::INVALID_HANDLE)?;
    let has_name = |function: Handle<Function>| {
        let function = state.functions.get(function);
        function.is_some_and(|function| function.name == there.name)
    };
    let at_index = module.functions.get(index).copied();
    let all = module.functions.iter().copied();
    let mut candidates = at_index.into_iter().chain(all);
    candidates
        .find(|function| has_name(*function))
        .ok_or(Error::NOT_FOUND)
}

/// Implements `cuKernelGetFunction`: returns a kernel's function in the current context.
pub(crate) fn kernel_function(out: Out<Handle<Function>>, kernel: Handle<Kernel>) -> Result {
    let driver = driver()?;
    let mut state = driver.state();
    let found = function(driver, &mut state, Handle::from_raw(kernel.raw()))?;
    out.put(found)
}

/// Implements `cuKernelGetLibrary`: returns the library of a kernel.
pub(crate) fn kernel_library(out: Out<Handle<Library>>, kernel: Handle<Kernel>) -> Result {
    let driver = driver()?;
    let state = driver.state();
    out.put(
        state
            .kernels
            .get(kernel)
            .ok_or(Error::INVALID_HANDLE)?
            .library,
    )
}

/// Implements `cuFuncGetName` and `cuKernelGetName`. The text lives as long as the function.
pub(crate) fn name(out: Out<*const c_char>, handle: Handle<Function>) -> Result {
    let driver = driver()?;
    let state = driver.state();
    if let Some(function) = state.functions.get(handle) {
        return out.put(function.name.as_ptr());
    }
    let kernel = state.kernels.get(Handle::from_raw(handle.raw()));
    out.put(kernel.ok_or(Error::INVALID_HANDLE)?.name.as_ptr())
}

/// Implements `cuFuncGetModule`: returns the module of a function.
pub(crate) fn function_module(out: Out<Handle<Module>>, function: Handle<Function>) -> Result {
    let driver = driver()?;
    let state = driver.state();
    out.put(
        state
            .functions
            .get(function)
            .ok_or(Error::INVALID_HANDLE)?
            .module,
    )
}

/// Implements `cuFuncGetParamInfo` and `cuKernelGetParamInfo`: returns a parameter's offset and size.
pub(crate) fn parameter_info(
    handle: Handle<Function>,
    index: usize,
    offset: Out<usize>,
    size: Out<usize>,
) -> Result {
    let driver = driver()?;
    let state = driver.state();
    let code = match state.functions.get(handle) {
        Some(function) => &function.code,
        None => {
            let kernel = state.kernels.get(Handle::from_raw(handle.raw()));
            &kernel.ok_or(Error::INVALID_HANDLE)?.code
        }
    };
    let parameter = code.parameters().get(index).ok_or(Error::INVALID_VALUE)?;
    offset.put(parameter.offset)?;
    size.put_if_wanted(parameter.size);
    Ok(())
}

fn attribute_place(attribute: u32) -> Result<usize> {
    let place = attribute as usize;
    if place < 16 {
        Ok(place)
    } else {
        Err(Error::INVALID_VALUE)
    }
}

/// Implements `cuFuncGetAttribute` and `cuKernelGetAttribute`: returns an attribute of a function.
pub(crate) fn attribute(out: Out<i32>, attribute: u32, handle: Handle<Function>) -> Result {
    let driver = driver()?;
    let mut state = driver.state();
    let place = attribute_place(attribute)?;
    if let Some(kernel) = state.kernels.get(Handle::from_raw(handle.raw())) {
        return out.put(attributes(&kernel.code)[place]);
    }
    let function = function(driver, &mut state, handle)?;
    let function = state.functions.get(function).ok_or(Error::INVALID_HANDLE)?;
    out.put(function.attributes[place])
}

/// Implements `cuFuncSetAttribute` and `cuKernelSetAttribute`: stores an attribute from number 8 on, without effect.
pub(crate) fn set_attribute(handle: Handle<Function>, attribute: u32, value: i32) -> Result {
    let driver = driver()?;
    let mut state = driver.state();
    let place = attribute_place(attribute)?;
    if place < 8 {
        return Err(Error::INVALID_VALUE);
    }
    let function = function(driver, &mut state, handle)?;
    let function = state
        .functions
        .get_mut(function)
        .ok_or(Error::INVALID_HANDLE)?;
    function.attributes[place] = value;
    Ok(())
}

/// Implements `cuFuncSetCacheConfig` and other hints, which only check the handle.
pub(crate) fn function_hint(handle: Handle<Function>) -> Result {
    let driver = driver()?;
    let mut state = driver.state();
    function(driver, &mut state, handle).map(|_| ())
}

/// Implements `cuFuncIsLoaded`: always returns 1, loaded.
pub(crate) fn is_loaded(out: Out<u32>, handle: Handle<Function>) -> Result {
    function_hint(handle)?;
    out.put(1)
}

/// Returns the function's code and the device of the current context.
fn code_here(driver: &Driver, handle: Handle<Function>) -> Result<(Code, usize)> {
    let mut state = driver.state();
    let function = function(driver, &mut state, handle)?;
    let function = state.functions.get(function).ok_or(Error::INVALID_HANDLE)?;
    let code = function.code.clone();
    let (_, device) = context_here(driver, &state)?;
    Ok((code, device))
}

/// Implements `cuOccupancyMaxActiveBlocksPerMultiprocessor`: returns the blocks an SM runs at once.
pub(crate) fn occupancy(
    out: Out<i32>,
    handle: Handle<Function>,
    block: i32,
    shared_bytes: usize,
) -> Result {
    let driver = driver()?;
    let (code, device) = code_here(driver, handle)?;
    let threads = u32::try_from(block).map_err(|_| Error::INVALID_VALUE)?;
    if threads == 0 || threads > THREADS_OF_A_BLOCK {
        return Err(Error::INVALID_VALUE);
    }
    let shared_bytes = u32::try_from(shared_bytes).unwrap_or(u32::MAX);
    let resources = code.resources(threads, shared_bytes);
    let blocks = resources.blocks_on_an_sm(&driver.devices[device]);
    out.put(i32::try_from(blocks).unwrap_or(i32::MAX))
}

/// Implements `cuOccupancyMaxPotentialBlockSize`: returns the most threads of a block within `limit`, and the number of
/// blocks that fill the device.
pub(crate) fn occupancy_block_size(
    grid: Out<i32>,
    block: Out<i32>,
    handle: Handle<Function>,
    shared_bytes: usize,
    limit: i32,
) -> Result {
    let driver = driver()?;
    let (code, device) = code_here(driver, handle)?;
    let device = &driver.devices[device];
    let most = code.threads_max();
    let limit = u32::try_from(limit).ok().filter(|limit| *limit > 0);
    let most = limit.map_or(most, |limit| limit.min(most));
    let shared_bytes = u32::try_from(shared_bytes).unwrap_or(u32::MAX);
    let blocks_of = |threads| {
        let resources = code.resources(threads, shared_bytes);
        resources.blocks_on_an_sm(device)
    };
    // The block size with the most threads on an SM, the largest of equal ones.
    let sizes = (1..=most / 32).map(|warps| warps * 32).chain([most]);
    let threads = sizes.max_by_key(|threads| (blocks_of(*threads) * threads, *threads));
    let threads = threads.unwrap_or(most);
    let blocks = blocks_of(threads) * device.sms;
    block.put(i32::try_from(threads).unwrap_or(i32::MAX))?;
    grid.put(i32::try_from(blocks).unwrap_or(i32::MAX))
}
