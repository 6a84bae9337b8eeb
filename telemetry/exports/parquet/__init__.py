"""Write Parquet files row group by row group."""
