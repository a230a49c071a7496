//! The CUDA back end: a device over the driver's API, and kernels in `kernels/`, compiled ahead and embedded. It needs
//! nothing but NVIDIA's driver, which it looks for when it starts.

mod device;
mod driver;
mod images;
mod link;
mod mail;
mod nccl;

use std::borrow::Cow;

use puna_backend::{BackendError, DeviceInfo, DeviceKind};
use puna_gpu::{Api, Device, Division, Gpu, Team};

use device::{CudaDevice, Facts};
use driver::{COMPUTE_CAPABILITY, Driver, MAX_SHARED_MEMORY_OPTIN, MULTIPROCESSOR_COUNT};
pub use images::IMAGES;
use link::{CudaLink, are_apart};

/// Devices older than this have no code.
const LEAST_CAPABILITY: u32 = 75;

/// Compiled kernels: names of their source files, and images for the driver.
pub type Images = Vec<(String, Cow<'static, [u8]>)>;

/// The devices of this machine.
pub struct Cuda {
    driver: &'static Driver,
    devices: Vec<(Facts, DeviceInfo)>,
    images: Images,
}

impl Cuda {
    /// Looks for driver and devices; the error says in a line why there are none.
    pub fn find() -> Result<Gpu<Self>, BackendError> {
        let embedded =
            |(name, image): &(&'static str, &'static [u8])| (name.to_string(), Cow::Borrowed(*image));
        Self::find_with(IMAGES.iter().map(embedded).collect())
    }

    /// The same with other kernels than those that are embedded, which have the same names and parameters: kernels can be
    /// compiled and measured where there is a card but nothing to build the rest with.
    pub fn find_with(images: Images) -> Result<Gpu<Self>, BackendError> {
        let missing = |reason: String| BackendError::Device { device: "CUDA".into(), reason };
        let driver = Driver::get().map_err(missing)?;
        let mut count = 0;
        // SAFETY: the pointer is to an integer of ours.
        let status = unsafe { (driver.device_count)(&mut count) };
        if status != 0 {
            return Err(missing(format!("no devices: {}", driver.name_of(status))));
        }
        let mut devices = Vec::new();
        for index in 0..count {
            let mut number = 0;
            // SAFETY: the pointer is to an integer of ours.
            if unsafe { (driver.device)(&mut number, index) } == 0 {
                devices.extend(look_at(driver, number, devices.len()));
            }
        }
        if devices.is_empty() {
            return Err(missing("no device of compute capability 7.5 or later".into()));
        }
        Ok(Gpu::new(Self { driver, devices, images }))
    }
}

/// What a device is, unless it is too old.
fn look_at(driver: &Driver, number: i32, index: usize) -> Option<(Facts, DeviceInfo)> {
    let attribute = |which: i32| {
        let mut value = 0;
        // SAFETY: the pointer is to an integer of ours.
        let status = unsafe { (driver.device_attribute)(&mut value, which, number) };
        if status == 0 { value as u32 } else { 0 }
    };
    let [major, minor] = COMPUTE_CAPABILITY.map(attribute);
    let capability = 10 * major + minor;
    if capability < LEAST_CAPABILITY {
        return None;
    }
    let mut text = [0_u8; 256];
    let mut memory = 0;
    // SAFETY: the pointers are to memory of ours, of the length given; it stays ended by a zero.
    unsafe {
        (driver.device_name)(text.as_mut_ptr().cast(), 255, number);
        (driver.device_memory)(&mut memory, number);
    }
    let length = text.iter().position(|byte| *byte == 0).unwrap_or(0);
    let product = String::from_utf8_lossy(&text[..length]).into_owned();
    let name = format!("CUDA{index}");
    let facts = Facts {
        name: name.clone(),
        number,
        processors: attribute(MULTIPROCESSOR_COUNT).max(1),
        capability,
        shared_bytes: attribute(MAX_SHARED_MEMORY_OPTIN),
    };
    let gigabytes = memory as f64 / (1_u64 << 30) as f64;
    let description = format!("{product}, {gigabytes:.0} GiB, compute capability {major}.{minor}");
    Some((facts, DeviceInfo { name, description, kind: DeviceKind::Gpu, memory: Some(memory as u64) }))
}

impl Api for Cuda {
    fn name(&self) -> &'static str {
        "CUDA"
    }

    fn devices(&self) -> Vec<DeviceInfo> {
        self.devices.iter().map(|(_, info)| info.clone()).collect()
    }

    fn open(&self, index: usize) -> Result<Box<dyn Device>, BackendError> {
        Ok(Box::new(self.device(index)?))
    }

    fn open_divided(
        &self,
        name: &str,
        indexes: &[usize],
        division: &Division,
    ) -> Result<Box<dyn Device>, BackendError> {
        let open = |index| self.device(index);
        Ok(Box::new(Team::<_, CudaLink>::open(name, indexes, division, open, are_apart)?))
    }
}

impl Cuda {
    fn device(&self, index: usize) -> Result<CudaDevice, BackendError> {
        let Some((facts, _)) = self.devices.get(index) else {
            let reason = format!("there are {} devices, not number {index}", self.devices.len());
            return Err(BackendError::Device { device: "CUDA".into(), reason });
        };
        CudaDevice::open(self.driver, facts.clone(), &self.images)
    }
}
