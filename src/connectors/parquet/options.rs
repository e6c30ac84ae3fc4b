//! How data files are written: the part of the configuration that the sinks share.

use parquet::arrow::arrow_writer::ArrowWriterOptions;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::objects::Durability;
use crate::units::Size;

/// How much of a row group is kept in memory before it goes to the file.
const ROW_GROUP_BYTES: usize = 16 << 20;

/// A column whose values do not repeat fills its dictionary in vain, and keeps it until its row group is written: with an
/// epoch in a file, the library's 1 MiB would be most of it.
const DICTIONARY_BYTES: usize = 256 << 10;

/// How the pages of a file are compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Codec {
    /// Small files at little cost.
    #[default]
    Zstd,
    /// For readers that know no zstd.
    Snappy,
    /// Not at all.
    None,
}

/// How files are written; a part of the configuration of every sink that writes them.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct FileOptions {
    /// How the files are compressed.
    #[serde(default)]
    pub compression: Codec,
    /// A file is closed when it has reached this size. Files are smaller where an epoch has less: one epoch never shares a
    /// file with the next.
    #[serde(default = "target_file_size")]
    pub target_file_size: Size,
    /// How many files one partition of a receiver keeps open, so that rows of many table partitions that come in turns make
    /// few files. Beyond it the one that was written to least recently is closed.
    #[serde(default = "max_open_files")]
    #[schemars(range(min = 1), extend("x-unit" = "files"))]
    pub max_open_files: usize,
    /// Whether files are forced to the disk before messages are settled.
    #[serde(default)]
    pub durability: Durability,
}

fn target_file_size() -> Size {
    Size(128 << 20)
}

fn max_open_files() -> usize {
    32
}

impl Default for FileOptions {
    fn default() -> Self {
        Self {
            compression: Codec::default(),
            target_file_size: target_file_size(),
            max_open_files: max_open_files(),
            durability: Durability::default(),
        }
    }
}

impl FileOptions {
    /// What the name of a file ends with.
    pub fn extension(&self) -> &'static str {
        match self.compression {
            Codec::Zstd => "zstd.parquet",
            Codec::Snappy => "snappy.parquet",
            Codec::None => "parquet",
        }
    }

    /// The same for the library.
    pub fn writer(&self) -> ArrowWriterOptions {
        let compression = match self.compression {
            Codec::Zstd => Compression::ZSTD(ZstdLevel::default()),
            Codec::Snappy => Compression::SNAPPY,
            Codec::None => Compression::UNCOMPRESSED,
        };
        let properties = WriterProperties::builder()
            .set_compression(compression)
            .set_statistics_enabled(EnabledStatistics::Chunk)
            .set_max_row_group_bytes(Some(ROW_GROUP_BYTES))
            .set_dictionary_page_size_limit(DICTIONARY_BYTES)
            .set_created_by(concat!("distributary ", env!("CARGO_PKG_VERSION")).to_owned())
            .build();
        ArrowWriterOptions::new().with_properties(properties).with_skip_arrow_metadata(true)
    }
}
