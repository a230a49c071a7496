//! The compiled kernels: for each source file machine code for sm_90a and PTX for others, made by `compile.sh`. A test
//! compares the list of digests with the sources.

macro_rules! images {
    ($($name:literal),* $(,)?) => {
        /// Source file and compiled image.
        pub const IMAGES: &[(&str, &[u8])] =
            &[$(($name, include_bytes!(concat!("../kernels/compiled/", $name, ".fatbin")))),*];
    };
}

images!(
    "attention",
    "best",
    "embed",
    "experts",
    "flash",
    "flash_rows",
    "matmul",
    "matvec",
    "matvec_float",
    "recurrent",
    "rowwise",
    "shares",
    "stream",
    "wide"
);
